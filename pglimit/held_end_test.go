package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

func TestACallerOfAHeldKeyLeavesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
		release := s.hold("a")
		for _, wait := range []time.Duration{
			10 * time.Millisecond,  // while the impatient call is under way
			100 * time.Millisecond, // while the patient one is
		} {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			began := time.Now()
			_, err := limiter.Allow(ctx, "a")
			if took := time.Since(began); took != wait || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v after %v, want %v", err, took, wait)
			}
			cancel()
		}
		// In the queue behind the call that nobody waits for, which is under way still.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := limiter.Allow(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		release()
		later(10 * time.Millisecond)
		if _, err := limiter.Allow(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if stats := limiter.Stats(); stats.GivenBack != 1 { // what the patient call took
			t.Errorf("%+v", stats)
		}
	})
}

func TestWhatWaitsForAHeldKeyIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		c := combining(t, s, func(c *pglimit.Config) { c.MaxWaiting = 3 })
		release := s.hold("a")
		waiting := []*heard{c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
		later(100 * time.Millisecond)
		waiting = append(waiting, c.ask(t.Context(), "a", 1))
		if one := c.ask(t.Context(), "a", 1); !errors.Is(one.err, pglimit.ErrOverloaded) {
			t.Errorf("%+v", one)
		}
		release()
		later(10 * time.Millisecond)
		for i, h := range waiting {
			if h.err != nil {
				t.Errorf("%d: %v", i, h.err)
			}
		}
	})
}

// Close waits for those who wait for a held key, as long as its context lasts.
func TestCloseWithAHeldKey(t *testing.T) {
	t.Parallel()
	for _, released := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := newTable(t)
			limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
			keys := []string{"a", "b", "c"} // more than may be asked at once
			c := callers{t, limiter}
			var waiting []*heard
			for _, key := range keys {
				release := s.hold(key)
				if released {
					time.AfterFunc(500*time.Millisecond, release)
				}
				waiting = append(waiting, c.ask(t.Context(), key, 1), c.ask(t.Context(), key, 1))
			}
			later(100 * time.Millisecond)
			waiting = append(waiting, c.ask(t.Context(), "a", 1))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			err := limiter.Close(ctx)
			took := time.Since(began)
			synctest.Wait()
			if released && (err != nil || took > 500*time.Millisecond) || !released && (!errors.Is(err, context.DeadlineExceeded) || took != time.Second) {
				t.Errorf("released %t: %v after %v", released, err, took)
			}
			for i, h := range waiting {
				if released && h.err != nil || !released && !errors.Is(h.err, pglimit.ErrClosed) {
					t.Errorf("released %t, number %d: %v", released, i, h.err)
				}
			}
		}) // which fails if a goroutine is left
	}
}

// Close that ends while a call is finding out that a key is held.
func TestCloseBeforeAHeldKeyIsNoticed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTable(t)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off = false })
		s.hold("a")
		waits := callers{t, limiter}.ask(t.Context(), "a", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := limiter.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if waits.err == nil || !errors.Is(waits.err, pglimit.ErrClosed) {
			t.Errorf("%+v", waits)
		}
	}) // which fails if a goroutine is left
}

// A role with a lock_timeout of its own ends even a patient call: its callers hear of it.
func TestAHeldKeyThatEvenAPatientCallGivesUpOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
		limiter := newLimiter(t, &fake{take: fail(errLocked)}, func(c *pglimit.Config) { c.Combine.Off = false })
		for range 3 {
			if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrLocked) {
				t.Error(err)
			}
		}
		if stats := limiter.Stats(); stats.LostTokens != 0 || stats.RoundTrips != 6 {
			t.Errorf("%+v", stats)
		}
	})
}

package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestWhatArrivesMeanwhileGoesOutTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 3, "b": 20}))
		c := combining(t, s, nil)
		first := c.ask(t.Context(), "a", 1)
		if s.asked(0) != "a:1" {
			t.Errorf("at once: %s", s.asked(0))
		}
		others := []*heard{c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "b", 2), c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)}
		if len(s.taken) != 1 {
			t.Fatalf("%d calls while one is under way", len(s.taken))
		}
		s.finish()
		if !first.Allowed || first.err != nil {
			t.Errorf("first: %+v", first)
		}
		if s.asked(1) != "b:4/2 a:3/1" {
			t.Errorf("together: %s", s.asked(1))
		}
		s.finish()
		ms := time.Millisecond
		for i, want := range []pglimit.Decision{
			{Key: "b", Allowed: true, Granted: 2, Remaining: 18, ResetAfter: 200 * ms},
			{Key: "a", Allowed: true, Granted: 1, Remaining: 1, ResetAfter: 1900 * ms},
			{Key: "b", Allowed: true, Granted: 2, Remaining: 16, ResetAfter: 400 * ms},
			{Key: "a", Allowed: true, Granted: 1, Remaining: 0, RetryAfter: 100 * ms, ResetAfter: 2000 * ms},
			{Key: "a", RetryAfter: 100 * ms, ResetAfter: 2000 * ms}, // the last to come
		} {
			want.At, want.Limiter, want.Limit = time.Unix(1000, 0), "api", c.limiter.Limit()
			if got := others[i]; got.err != nil || got.Decision != want {
				t.Errorf("%d: %+v, %v\nwant %+v", i, got.Decision, got.err, want)
			}
		}
		stats := c.limiter.Stats()
		if decided(stats) != 6 || stats.RoundTrips != 2 || stats.Requests != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestASlowKeyHoldsUpItsLaneOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		s := &fake{take: func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if requests[0].Key == "slow" {
				<-stuck
			}
			return []pglimit.Decision{{Allowed: true, Granted: 1}}, nil
		}}
		c := combining(t, s, func(c *pglimit.Config) { c.Combine.Lanes = 8 })
		slow := c.ask(t.Context(), "slow", 1)
		answered := 0
		var waiting []*heard
		for key := range 100 {
			if h := c.ask(t.Context(), fmt.Sprint("k", key), 1); h.err == nil {
				answered++
			} else {
				waiting = append(waiting, h)
			}
		}
		if slow.err == nil || answered < 60 || answered == 100 {
			t.Errorf("%d of 100 keys were answered while one in 8 lanes is stuck", answered)
		}
		s.take = grantAll
		close(stuck)
		synctest.Wait()
		for _, h := range append(waiting, slow) {
			if !h.Allowed {
				t.Errorf("%+v", h)
			}
		}
	})
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

func TestAfterCloseNothingIsSent(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			limiter := newLimiter(t, f, func(c *pglimit.Config) { c.Combine.Off = alone })
			if _, err := limiter.Allow(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := limiter.Close(ended); err != nil {
				t.Errorf("nobody had to wait: %v", err)
			}
			if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrClosed) {
				t.Error(err)
			}
			if len(f.taken) != 1 {
				t.Errorf("%d calls", len(f.taken))
			}
		})
	}
}

// Without combining a call that hangs goes on after Close, unless the breaker gives it up.
// Then the Limiter is closed, and OnError is not asked what would be if Postgres were away.
func TestCloseWhileACallHangs(t *testing.T) {
	t.Parallel()
	for _, breaker := range []bool{false, true} {
		for _, several := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				o := newOutage()
				limiter := breaking(t, o, func(c *pglimit.Config) {
					c.Breaker.Off, c.Timeout, c.OnError = !breaker, 30*time.Second, pglimit.FailOpen
				})
				o.is(false, true)
				var decisions []pglimit.Decision
				var err error
				var took time.Duration
				began := time.Now()
				var work sync.WaitGroup
				work.Go(func() {
					if several {
						decisions, err = limiter.DoEach(t.Context(), wants(t, "k:1 l:1")...)
					} else {
						decisions = make([]pglimit.Decision, 1)
						decisions[0], err = limiter.Allow(t.Context(), "k")
					}
					took = time.Since(began)
				})
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if err := limiter.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 100*time.Millisecond {
					t.Errorf("close: %v after %v", err, time.Since(began))
				}
				work.Wait()
				want := 30 * time.Second
				if breaker {
					want = 100 * time.Millisecond
				}
				if !errors.Is(err, pglimit.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, pglimit.ErrUnavailable) || pglimit.CauseOf(err) != pglimit.CauseClosed || took != want {
					t.Errorf("breaker %t: %v after %v", breaker, err, took)
				}
				for _, d := range decisions {
					if d != (pglimit.Decision{}) {
						t.Errorf("breaker %t: %+v", breaker, d)
					}
				}
				if stats := limiter.Stats(); stats.Failed[pglimit.CauseClosed] != int64(len(decisions)) || stats.Allowed.Total() != 0 || stats.Waiting != 0 {
					t.Errorf("%+v", stats)
				}
			})
		}
	}
}

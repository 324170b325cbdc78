package pglimit_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// slow is a context that takes its time to say whether it has ended.
type slow struct{ context.Context }

func (s slow) Err() error {
	time.Sleep(time.Millisecond)
	return s.Context.Err()
}

// Who waited for a lease when Close began has an answer, however long it takes from there
// to its lane.
func TestCloseAnswersThoseWhoWaitForALease(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { closeWhileALeaseIsFetched(t, alone) })
	}
}

// alone: without combining.
func closeWhileALeaseIsFetched(t *testing.T, alone bool) {
	b := newBank()
	b.latency.Store(int64(10 * time.Millisecond))
	limiter := newLimiter(t, b, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Limit = true, alone, perHour(8) })
	if _, err := limiter.AllowN(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.AllowN(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "a"); err != nil { // three are left: too few for a lease
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() {
			if _, err := limiter.Allow(slow{t.Context()}, "a"); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	if err := limiter.Close(t.Context()); err != nil {
		t.Error(err)
	}
	work.Wait()
	if stats := limiter.Stats(); stats.LeaseTrips == 0 {
		t.Errorf("nobody waited for a lease: %+v", stats)
	}
}

// A lease that is being settled when Close gives up is one that could not be given back.
func TestCloseSaysWhatAFetchUnderWayCouldNotGiveBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, pglimit.PerSecond(1000))
		load(t, limiter, time.Millisecond, time.Second)
		b.latency.Store(int64(time.Hour))  // which ends with the context
		time.Sleep(250 * time.Millisecond) // it is idle, and is being settled
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := limiter.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "pglimit: 1 leases could not be given back") {
			t.Error(err)
		}
	})
}

func TestCloseWithoutLeasesNeedsNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := leasing(t, newBank(), pglimit.PerSecond(1000))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := limiter.Close(ended); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseOfManyLeasesWaitsNoLongerThanTheyLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, perHour(100_000))
		var work sync.WaitGroup
		for key := range 40 {
			for range 20 {
				work.Go(func() {
					if _, err := limiter.Allow(t.Context(), strconv.Itoa(key)); err != nil {
						t.Error(err)
					}
				})
			}
		}
		work.Wait()
		b.latency.Store(int64(time.Hour)) // which ends with the context
		began := time.Now()
		if err := limiter.Close(t.Context()); err == nil {
			t.Error("nothing could be given back, and Close does not say so")
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

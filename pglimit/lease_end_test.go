package pglimit_test

import (
	"context"
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

package pglimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// perHour is a limit of tokens that do not flow back while a test runs.
func perHour(tokens int64) pglimit.Limit { return pglimit.PerHour(tokens) }

func TestALeaseIsNotInTheWayOfItsOwnProcess(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			b.latency.Store(int64(latency))
			limiter := leasing(t, b, perHour(1000))
			spent := load(t, limiter, time.Millisecond, 300*time.Millisecond)
			if b.setAside() == 0 {
				t.Fatal("there is no lease")
			}
			d, err := limiter.Peek(t.Context(), "a")
			if err != nil || !d.Allowed || d.Remaining != 1000-spent {
				t.Errorf("peek after %d tokens: %+v, %v", spent, d, err)
			}
			d, err = limiter.AllowN(t.Context(), "a", 1000-spent)
			if err != nil || !d.Allowed || d.Remaining != 0 {
				t.Errorf("all that is left after %d tokens: %+v, %v", spent, d, err)
			}
		})
	}
}

func TestAResetTakesTheLeaseBackFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.resetting = 300 * time.Millisecond // for longer than a dropped lease is not taken again
		limiter := leasing(t, b, perHour(100_000))
		var work sync.WaitGroup
		work.Go(func() { load(t, limiter, 100*time.Microsecond, 2*time.Second) })
		time.Sleep(500 * time.Millisecond)
		if b.setAside() == 0 {
			t.Fatal("there is no lease")
		}
		for range 5 {
			if err := limiter.Reset(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			time.Sleep(3 * time.Millisecond)
		}
		work.Wait()
		for _, tokens := range b.resets {
			if tokens != 0 {
				t.Errorf("set aside when it was reset: %d", b.resets)
			}
		}
		if len(b.resets) != 5 {
			t.Error(b.resets)
		}
	})
}

// What is denied while tokens are set aside is not denied any more when they come back.
func TestAnUnspentLeaseEndsTheMemoryOfADenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limit := perHour(1000)
		one := newLimiter(t, b, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Memory.Off, c.Limit = true, false, false, limit })
		var denies atomic.Bool
		denies.Store(true)
		b.take = func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			if denies.Load() {
				_ = b.travel(ctx)
				return answer(pglimit.Decision{RetryAfter: time.Hour})(ctx, requests)
			}
			return b.decide(ctx, requests)
		}
		for range 5 { // the fifth finds its key busy, and is leased
			go func() { _, _ = one.AllowN(t.Context(), "a", 2) }()
		}
		time.Sleep(50 * time.Millisecond)
		denies.Store(false)
		if b.setAside() == 0 {
			t.Fatalf("there is no lease: %+v", one.Stats())
		}
		// What is left of it is not denied to its own process, whatever the memory knows, and
		// who wants more is not denied either.
		for _, tokens := range []int64{2, 2} {
			if d, err := one.AllowN(t.Context(), "a", tokens); err != nil || !d.Allowed {
				t.Errorf("%+v, %v, %+v", d, err, one.Stats())
			}
		}
		time.Sleep(300 * time.Millisecond) // it is idle, and settled
		if d, err := one.AllowN(t.Context(), "a", 2); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if err := one.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

package pglimit_test

import (
	"context"
	"errors"
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

// A request of more than the lease, but little enough to fetch another, is not in vain
// where the other is too small.
func TestALeaseThatIsTooSmallIsSettled(t *testing.T) {
	t.Parallel()
	for used := range int64(60) {
		synctest.Test(t, func(t *testing.T) {
			b := newBank()
			limiter := leasing(t, b, perHour(1000))
			if d, err := limiter.AllowN(t.Context(), "a", 900); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			time.Sleep(200 * time.Millisecond) // after a large request there is no lease for a while
			left := 100 - load(t, limiter, time.Millisecond, time.Duration(used)*time.Millisecond)
			if left != 100-used {
				t.Fatalf("%d left after %d", left, used)
			}
			for ; left >= 20; left -= 20 {
				d, err := limiter.AllowN(t.Context(), "a", 20)
				if err != nil || !d.Allowed || d.Remaining != left-20 {
					t.Errorf("20 of %d: %+v, %v", left, d, err)
				}
			}
		})
	}
}

// Who waits for a lease does so once, however many small requests spend it meanwhile.
func TestALargeRequestIsNotOvertakenForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, pglimit.PerSecond(1_000_000))
		var work sync.WaitGroup
		end := time.Now().Add(300 * time.Millisecond)
		for range 20 {
			work.Go(func() {
				for time.Now().Before(end) {
					if _, err := limiter.Allow(t.Context(), "a"); err != nil {
						t.Error(err)
					}
					time.Sleep(50 * time.Microsecond)
				}
			})
		}
		for time.Now().Before(end) {
			began := time.Now()
			if d, err := limiter.AllowN(t.Context(), "a", 100); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			// Two calls, and those before it that were under way, of 2 ms each.
			if took := time.Since(began); took > 10*time.Millisecond {
				t.Errorf("took %v", took)
			}
			time.Sleep(5 * time.Millisecond)
		}
		work.Wait()
		if stats := limiter.Stats(); stats.Allowed[pglimit.FromLease] == 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// Of those who wait for a lease, those get it who came first.
func TestALeaseIsServedInOrderOfArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.latency.Store(int64(5 * time.Millisecond))
		limiter := leasing(t, b, perHour(1000))
		start := time.Now()
		var mu sync.Mutex
		var took []time.Duration // until each had its answer, in order of arrival
		var work sync.WaitGroup
		for i := range 20 {
			took = append(took, 0)
			work.Go(func() {
				if _, err := limiter.Allow(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				took[i] = time.Since(start)
				mu.Unlock()
			})
			time.Sleep(100 * time.Microsecond)
		}
		work.Wait()
		// The first four are sent. The fifth, after 400 µs, finds its key busy: it and those
		// behind it wait for a lease, of five tokens, and 15 - 4 go on to Postgres.
		for i, d := range took {
			if leased := i >= 4 && i < 9; leased != (d == 10*time.Millisecond+400*time.Microsecond) {
				t.Errorf("number %d had its answer after %v", i, d)
			}
		}
		if stats := limiter.Stats(); stats.Allowed[pglimit.FromLease] != 5 {
			t.Errorf("%+v", stats)
		}
	})
}

// The database's clock may step back, and an answer may take as long as a lease lasts.
func TestALeaseThatHasExpiredWhenItComesIsOfNoUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.expired = true
		limiter := leasing(t, b, pglimit.PerSecond(10_000))
		load(t, limiter, time.Millisecond, time.Second)
		if stats := limiter.Stats(); stats.Allowed[pglimit.FromLease] != 0 || stats.LeaseTrips > 11 || stats.UnspentTokens != stats.LeasedTokens {
			t.Errorf("one in a hold at most, and nothing spent: %+v", stats)
		}
	})
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

func TestWhatWaitsForLeasesIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		b := newBank()
		limiter := newLimiter(t, b, func(c *pglimit.Config) {
			c.Leases.On, c.Combine.Off, c.MaxWaiting, c.Limit = true, false, most, perHour(100_000)
		})
		ask := func(callers int, each func(error)) {
			var work sync.WaitGroup
			for range callers {
				work.Go(func() {
					for range 100 {
						_, err := limiter.Allow(t.Context(), "a")
						each(err)
						time.Sleep(10 * time.Microsecond)
					}
				})
			}
			work.Wait()
		}
		ask(most, func(err error) {
			if err != nil {
				t.Error("as many as may wait:", err)
			}
		})
		var overloaded atomic.Int64
		ask(10*most, func(err error) {
			if errors.Is(err, pglimit.ErrOverloaded) {
				overloaded.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
		if overloaded.Load() == 0 {
			t.Error("more than may wait did")
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
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

// A lease that is made for a high rate is settled before it expires, though somebody asks
// now and then: else what nobody spent would count as spent.
func TestALeaseIsSettledBeforeItExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		limiter := leasing(t, b, perHour(100_000))
		spent := load(t, limiter, 100*time.Microsecond, 500*time.Millisecond)
		spent += load(t, limiter, 60*time.Millisecond, 5*time.Second)
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		d, err := limiter.Peek(t.Context(), "a")
		if !errors.Is(err, pglimit.ErrClosed) {
			t.Error(d, err)
		}
		other := newLimiter(t, b, func(c *pglimit.Config) { c.Limit = perHour(100_000) })
		d, err = other.Peek(t.Context(), "a")
		if err != nil || d.Remaining < 100_000-spent {
			t.Errorf("%d left after %d, %v", d.Remaining, spent, err)
		}
	})
}

// What comes after a large request, which waits to be sent, does not set aside what that wants.
func TestALeaseIsNotMadeBeforeALargeRequestIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank()
		b.latency.Store(int64(10 * time.Millisecond))
		limiter := leasing(t, b, perHour(1000))
		var work sync.WaitGroup
		ask := func(tokens int64, wanted bool) {
			work.Go(func() {
				if d, err := limiter.AllowN(t.Context(), "a", tokens); err != nil || d.Allowed != wanted {
					t.Errorf("%d tokens: %+v, %v", tokens, d, err)
				}
			})
			time.Sleep(100 * time.Microsecond)
		}
		ask(1, true)
		ask(999, true)
		for range 20 {
			ask(1, false)
		}
		work.Wait()
	})
}

package pglimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// leasing has leases and combining, and no memory, and can be closed in the end.
func leasing(t *testing.T, strategy pglimit.Strategy, limit pglimit.Limit) *pglimit.Limiter {
	t.Helper()
	limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Leases.On, c.Combine.Off, c.Limit = true, false, limit })
	t.Cleanup(func() {
		if err := limiter.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return limiter
}

// load asks every gap for so long, each request in a goroutine of its own, and returns how
// many were allowed.
func load(t *testing.T, limiter *pglimit.Limiter, gap, length time.Duration) (allowed int64) {
	t.Helper()
	var mu sync.Mutex
	var work sync.WaitGroup
	for range length / gap {
		work.Go(func() {
			d, err := limiter.Allow(t.Context(), "a")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			allowed += d.Granted
			mu.Unlock()
		})
		time.Sleep(gap)
	}
	work.Wait()
	return allowed
}

func TestABusyKeyIsLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		s.latency = time.Millisecond
		limiter := leasing(t, s, pglimit.PerSecond(1000))
		allowed := load(t, limiter, 2*time.Millisecond, 5*time.Second) // 500/s
		stats := limiter.Stats()
		if allowed != 2500 || stats.Allowed[pglimit.FromLease]+decided(stats) != 2500 {
			t.Errorf("%d of 2,500 were allowed: %+v", allowed, stats)
		}
		// A lease is made to last 100 ms, and to be a quarter of what is left at most.
		if stats.Allowed[pglimit.FromLease] < 2400 || stats.LeaseTrips > 100 {
			t.Errorf("%+v", stats)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		stats = limiter.Stats()
		if used := stats.LeasedTokens - stats.UnspentTokens; used != stats.Allowed[pglimit.FromLease] {
			t.Errorf("%d tokens of leases for %d requests", used, stats.Allowed[pglimit.FromLease])
		}
		if n := setAside(limiter); n != 0 {
			t.Errorf("%d tokens are set aside still", n)
		}
	})
}

// makeBusy makes the key busy: the fifth request asks for a lease.
func makeBusy(t *testing.T, limiter *pglimit.Limiter) {
	t.Helper()
	for range 5 {
		go func() { _, _ = limiter.Allow(t.Context(), "a") }()
	}
	synctest.Wait()
}

// perHour is a limit of tokens that do not flow back while a test runs.
func perHour(tokens int64) pglimit.Limit { return pglimit.PerHour(tokens) }

// setAside is how many leased tokens the Limiter has, if each request is for one.
func setAside(limiter *pglimit.Limiter) int64 {
	s := limiter.Stats()
	return s.LeasedTokens - s.UnspentTokens - s.Allowed[pglimit.FromLease]
}

// What has to be durable asks Postgres, though there is a lease, which is relaxed.
func TestWhatHasToBeDurableIsNotSpentFromALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := leasing(t, newStore(), perHour(60))
		load(t, limiter, time.Millisecond, 12*time.Millisecond)
		if setAside(limiter) == 0 {
			t.Fatal("there is no lease")
		}
		d, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Tokens: 1, Durability: pglimit.Durable})
		if err != nil || !d.Allowed || d.Source != pglimit.FromDatabase {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// A Reset takes the lease back first, and there is none while it lasts, for one key as for all.
func TestAResetTakesTheLeaseBackFirst(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := resetsSlowly{newStore()}
			limiter := leasing(t, s, perHour(100_000))
			resets := 0
			s.onReset = func() {
				for range 10 { // for longer than a lease that was dropped is not taken again
					if n := setAside(limiter); n != 0 {
						t.Errorf("%d tokens are set aside during a reset", n)
					}
					time.Sleep(30 * time.Millisecond)
				}
				resets++
			}
			var work sync.WaitGroup
			work.Go(func() { load(t, limiter, time.Millisecond, 2*time.Second) })
			for range 2 {
				later(500 * time.Millisecond)
				if setAside(limiter) == 0 {
					t.Fatal("there is no lease")
				}
				err := limiter.Reset(t.Context(), "a")
				if all {
					_, err = limiter.ResetAll(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
			work.Wait()
			if resets != map[bool]int{false: 2, true: 4}[all] {
				t.Errorf("%d resets", resets)
			}
		})
	}
}

// resetsSlowly is a store whose buckets can all be reset.
type resetsSlowly struct{ *store }

func (r resetsSlowly) ResetAll(ctx context.Context, session pglimit.Session, limiter string) (int64, error) {
	r.onReset()
	return r.memory.ResetAll(ctx, session, limiter)
}

// What is denied while tokens are set aside is not denied any more when they come back.
func TestAnUnspentLeaseEndsTheMemoryOfADenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := onMemory(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
			c.Limit, c.Leases.TTL, c.Memory.TTL = perHour(20), time.Second, time.Minute
		})
		left := 20 - untilLeased(t, limiter, "k")
		for _, tokens := range []int64{left - 3, 3, 3} { // in a transaction, which leases and memory do not know
			_, _ = limiter.On(pglimit.InTx(pglimitTx{})).AllowN(t.Context(), "k", tokens)
		}
		if d, err := limiter.AllowN(t.Context(), "k", 2); err != nil || !d.Allowed { // out of the lease
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := limiter.AllowN(t.Context(), "k", left); err != nil {
			t.Error(err)
		}
		time.Sleep(300 * time.Millisecond) // it is idle, and settled
		if d, err := limiter.Peek(t.Context(), "k"); err != nil || d.Remaining == 0 {
			t.Errorf("%+v, %v", d, err)
		} else if d, err = limiter.AllowN(t.Context(), "k", d.Remaining); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// untilLeased takes tokens of the key, one by one, until there is a lease. It returns how many.
func untilLeased(t *testing.T, limiter *pglimit.Limiter, key string) (taken int64) {
	t.Helper()
	for d := (pglimit.Decision{}); d.Source != pglimit.FromLease; taken++ {
		var err error
		if d, err = limiter.Allow(t.Context(), key); err != nil || !d.Allowed || taken > 90 {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	return taken
}

// Whoever has to ask Postgres is not denied the tokens that this very process has leased.
func TestEveryoneGetsWhatThisProcessHasLeased(t *testing.T) {
	t.Parallel()
	looser := pglimit.PerHour(100).WithBurst(101)
	for name, all := range map[string]func(t *testing.T, l *pglimit.Limiter, left int64) (granted int64, err error){
		"with an ID": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			d, err := l.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: left, ID: "id"})
			return d[0].Granted, err
		},
		"in a group": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			g, err := l.DoAll(t.Context(), pglimit.Request{Key: "k", Tokens: left})
			return g.Decisions[0].Granted, err
		},
		"waiting": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			d, err := l.WaitN(ctx, "k", left)
			return d.Granted, err
		},
		"ahead": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			r, err := l.ReserveN(t.Context(), "k", left)
			return left, errors.Join(err, map[bool]error{true: errors.New("they are due later")}[r.Delay() > 0])
		},
		"under another limit": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			d, err := l.Do(t.Context(), pglimit.Request{Key: "k", Limit: looser, Tokens: left + 1})
			return d.Granted - 1, err
		},
		"after SetLimit": func(t *testing.T, l *pglimit.Limiter, left int64) (int64, error) {
			if err := l.SetLimit(looser); err != nil {
				return 0, err
			}
			d, err := l.AllowN(t.Context(), "k", left+1)
			return d.Granted - 1, err
		},
		"a peek": func(t *testing.T, l *pglimit.Limiter, _ int64) (int64, error) {
			d, err := l.Peek(t.Context(), "k")
			return d.Remaining, err
		},
		"in one Take with others": func(t *testing.T, l *pglimit.Limiter, left int64) (granted int64, err error) {
			decisions, err := l.DoEach(t.Context(),
				pglimit.Request{Key: "k", Tokens: 10}, pglimit.Request{Key: "k"}, pglimit.Request{Key: "k", Tokens: 10, ID: "id"},
				pglimit.Request{Key: "k", Tokens: 10, Ahead: time.Second}, pglimit.Request{Key: "k", Tokens: left - 29, Limit: looser})
			for _, d := range decisions {
				granted += d.Granted
			}
			return granted - 1, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := onMemory(t, pglimittest.MemoryOn(time.Now), nil)
				left := limiter.Limit().Burst - untilLeased(t, limiter, "k")
				if granted, err := all(t, limiter, left); granted != left || err != nil {
					t.Errorf("%d of %d, %v", granted, left, err)
				}
			})
		})
	}
}

package pglimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

func TestCloseWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, nil)
		one, two := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := c.limiter.Close(ctx)
		synctest.Wait()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if !errors.Is(one.err, pglimit.ErrClosed) || !errors.Is(two.err, pglimit.ErrClosed) {
			t.Errorf("%v, %v", one.err, two.err)
		}
		for _, err := range []error{one.err, two.err} {
			if errors.Is(err, context.Canceled) || pglimit.CauseOf(err) != pglimit.CauseClosed {
				t.Errorf("%v: %v, and nobody cancelled it", pglimit.CauseOf(err), err)
			}
		}
		if len(s.taken) != 1 {
			t.Errorf("%d calls", len(s.taken))
		}
	}) // which fails if a goroutine is left
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

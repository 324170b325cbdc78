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

func TestCloseAnswersThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(buckets(map[string]int64{"a": 20}))
		c := combining(t, s, nil)
		one, two := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 2)
		closed := make(chan error, 1)
		go func() { closed <- c.limiter.Close(t.Context()) }()
		synctest.Wait()
		if late := c.ask(t.Context(), "a", 1); !errors.Is(late.err, pglimit.ErrClosed) {
			t.Errorf("%+v", late)
		}
		s.finish()
		s.finish()
		if err := <-closed; err != nil || !one.Allowed || !two.Allowed {
			t.Errorf("%v, %+v, %+v", err, one, two)
		}
	})
}

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

// underWay counts the calls of a strategy that have not returned. Each takes its time, also
// to notice that its context has ended.
type underWay struct {
	*bank
	calls atomic.Int64
}

func (u *underWay) call(ctx context.Context) error {
	u.calls.Add(1)
	defer u.calls.Add(-1)
	defer time.Sleep(30 * time.Millisecond) // it ends a while after it was told to
	select {
	case <-time.After(300 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *underWay) Take(ctx context.Context, _ pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := u.call(ctx); err != nil {
		return nil, err
	}
	return grantAll(ctx, requests)
}

func (u *underWay) GiveBack(ctx context.Context, _ pglimit.Session, _ []pglimit.Refund) error {
	return u.call(ctx)
}

func (u *underWay) Lease(ctx context.Context, db pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	if err := u.call(ctx); err != nil {
		return pglimit.Lease{}, err
	}
	return u.bank.Lease(ctx, db, r)
}

// When Close returns the strategy is not asked any more: not for those who have left, not to
// give back what they were granted, not for leases. The pool may be closed.
func TestCloseReturnsWhenNoCallIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, leases := range []bool{false, true} {
		for wait := range 80 {
			synctest.Test(t, func(t *testing.T) {
				s := &underWay{bank: newBank()}
				limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Leases.On, c.Limit = false, leases, perHour(1000) })
				for i := range 20 {
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*30*time.Millisecond)
						defer cancel()
						_, _ = limiter.Allow(ctx, string(rune('a'+i%3)))
					}()
				}
				time.Sleep(time.Duration(wait) * 10 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				began := time.Now()
				_ = limiter.Close(ctx)
				if took := time.Since(began); took > 200*time.Millisecond { // a call's end, and that of a refund
					t.Errorf("leases %t: closed after %d ms, and it took %v", leases, 10*wait, took)
				}
				if n := s.calls.Load(); n != 0 {
					t.Errorf("leases %t: closed after %d ms, and %d calls are under way", leases, 10*wait, n)
				}
			})
		}
	}
}

// Two who close it both wait.
func TestCloseTwiceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(grantAll)
		c := combining(t, s, nil)
		one := c.ask(t.Context(), "a", 1)
		closed := make(chan error, 2)
		for range 2 {
			go func() { closed <- c.limiter.Close(t.Context()) }()
		}
		synctest.Wait()
		if len(closed) != 0 {
			t.Error("it did not wait")
		}
		s.finish()
		if first, second := <-closed, <-closed; first != nil || second != nil || one.err != nil {
			t.Errorf("%v, %v, %+v", first, second, one)
		}
	})
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

// A caller who asks for a sign of life does not go on after Close either.
func TestCloseWhileACallerAsksForASignOfLife(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.OnError = pglimit.FailOpen })
		o.is(false, true)
		opened(t, limiter, 4*time.Second)
		later(250 * time.Millisecond)
		calls, pings := o.calls(), o.asked()
		var d pglimit.Decision
		var err error
		var took time.Duration
		began := time.Now()
		var work sync.WaitGroup
		work.Go(func() {
			d, err = limiter.Allow(t.Context(), "k")
			took = time.Since(began)
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := limiter.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		work.Wait()
		if !errors.Is(err, pglimit.ErrClosed) || errors.Is(err, context.Canceled) || d != (pglimit.Decision{}) || took != 100*time.Millisecond {
			t.Errorf("%+v, %v after %v", d, err, took)
		}
		if o.calls() != calls || o.asked() != pings+1 {
			t.Errorf("%d calls, %d signs of life", o.calls()-calls, o.asked()-pings)
		}
		later(time.Minute)
	})
}

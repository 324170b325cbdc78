package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// panicking is a strategy that panics when it is told to.
type panicking struct {
	*store
	now bool
}

func (p *panicking) maybe() {
	if p.now {
		panic("a bug of the strategy's")
	}
}

func newPanicking() *panicking {
	p := &panicking{store: newStore()}
	p.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		p.maybe()
		return p.decide(ctx, requests)
	}
	p.giveBack = func(context.Context) error { p.maybe(); return nil }
	return p
}

func (p *panicking) Lease(ctx context.Context, s pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	p.maybe()
	return p.store.Lease(ctx, s, r)
}

func (p *panicking) Reset(ctx context.Context, s pglimit.Session, limiter, key string) error {
	p.maybe()
	return p.store.Reset(ctx, s, limiter, key)
}

func (p *panicking) ResetAll(context.Context, pglimit.Session, string) (int64, error) {
	p.maybe()
	return 1, nil
}

// saysSo is whether the error is that of a panic, and where it was.
func saysSo(err error) bool {
	return err != nil && strings.Contains(err.Error(), "pglimit: the strategy fake panicked: a bug of the strategy's\n") && strings.Contains(err.Error(), "panic_test.go:")
}

// Who asks while the strategy panics has an error, and the next is served as ever.
func TestAStrategyThatPanicsFailsItsOwnCallers(t *testing.T) {
	t.Parallel()
	for _, breaker := range []bool{true, false} {
		bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
			p := newPanicking()
			onError := asked{answer: pglimit.FailOpen}
			limiter := newLimiter(t, p, func(c *pglimit.Config) { change(c); c.Breaker.Off = !breaker })
			failing := newLimiter(t, p, func(c *pglimit.Config) { change(c); c.Breaker.Off, c.OnError = !breaker, onError.onError })
			for range 3 {
				p.now = true
				for range 3 { // which is no outage
					if d, err := limiter.Allow(t.Context(), "a"); !saysSo(err) || d != (pglimit.Decision{}) {
						t.Errorf("%+v, %v", d, err)
					}
				}
				if _, err := limiter.Peek(t.Context(), "a"); !saysSo(err) {
					t.Error(err)
				}
				if _, err := limiter.DoEach(t.Context(), wants(t, "a:1 b:1")...); !saysSo(err) || strings.Count(err.Error(), "request ") != 2 {
					t.Error(err)
				}
				if err := limiter.Reset(t.Context(), "a"); !saysSo(err) || !strings.HasPrefix(err.Error(), `pglimit: reset of "a": `) {
					t.Error(err)
				}
				if _, err := limiter.ResetAll(t.Context()); !saysSo(err) {
					t.Error(err)
				}
				if _, err := limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "a"); !saysSo(err) {
					t.Error(err)
				}
				if d, err := failing.Allow(t.Context(), "a"); err != nil || d.Source != pglimit.FromFallback {
					t.Errorf("%+v, %v", d, err)
				}
				p.now = false
				if d, err := limiter.Allow(t.Context(), "a"); err != nil || !d.Allowed {
					t.Errorf("the next: %+v, %v", d, err)
				}
				if n, err := limiter.ResetAll(t.Context()); err != nil || n != 1 {
					t.Errorf("%d, %v", n, err)
				}
				if err := limiter.Reset(t.Context(), "a"); err != nil {
					t.Error(err)
				}
			}
			if stats := limiter.Stats(); stats.Failed[pglimit.CauseOther] != 3*7 || stats.Failed.Total() != 3*7 || stats.Waiting != 0 || stats.Open != 0 || decided(stats) != 3 {
				t.Errorf("%+v", stats)
			}
			if len(onError.errs) != 3 || !saysSo(onError.errs[0]) {
				t.Errorf("%v", onError.errs)
			}
			for _, l := range []*pglimit.Limiter{limiter, failing} {
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// panicPool panics when it is asked for a sign of life.
type panicPool struct {
	*outage
	now atomic.Bool
}

func (p *panicPool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if p.now.Load() {
		panic("a bug of the pool's")
	}
	return p.outage.Exec(ctx, sql, args...)
}

// Then there is no sign of life, and the next caller who asks for one closes the breaker.
func TestAPanicWhileAskingForASignOfLife(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} { // then the panic is in a goroutine of the breaker's first
		bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
			p := &panicPool{outage: newOutage()}
			limiter, err := pglimit.New(p, p.outage, config(func(c *pglimit.Config) { change(c); c.Breaker.Off, c.Timeout = false, time.Second }))
			if err != nil {
				t.Fatal(err)
			}
			p.is(!silent, silent)
			p.now.Store(true)
			opened(t, limiter, 4*time.Second)
			for range 3 {
				later(250 * time.Millisecond)
				_, err := limiter.Allow(t.Context(), "k")
				if !errors.Is(err, pglimit.ErrUnavailable) || !strings.Contains(err.Error(), "no sign of life: ") || !strings.Contains(err.Error(), "panicked: a bug of the pool's") {
					t.Errorf("silent %t: %v", silent, err)
				}
			}
			p.is(false, false)
			p.now.Store(false)
			later(250 * time.Millisecond)
			if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || limiter.Stats().Open != 0 {
				t.Errorf("silent %t: %+v, %v", silent, d, err)
			}
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			later(time.Minute)
		})
	}
}

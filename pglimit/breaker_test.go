package pglimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// outage is a pool, and a strategy, whose server can be away: it refuses connections, or is
// silent. What it is asked it grants, a millisecond later.
type outage struct {
	pglimit.Pool
	fake
	refuses, silent bool
	pings           int
}

func newOutage() *outage {
	o := &outage{}
	o.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		if err := o.travel(ctx); err != nil {
			return nil, err
		}
		return grantAll(ctx, requests)
	}
	return o
}

func (o *outage) travel(ctx context.Context) error {
	o.mu.Lock()
	refuses, silent := o.refuses, o.silent
	o.mu.Unlock()
	switch {
	case refuses:
		return fmt.Errorf("%w: connection refused", pglimit.ErrUnavailable)
	case silent:
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(time.Millisecond)
	return ctx.Err()
}

func (o *outage) Exec(ctx context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	o.mu.Lock()
	o.pings++
	o.mu.Unlock()
	if sql != "select 1" {
		return pgconn.CommandTag{}, errors.New("no ping: " + sql)
	}
	if err := o.travel(ctx); err != nil {
		return pgconn.CommandTag{}, errors.New("no connection") // as a pool says it, which knows none of our errors
	}
	return pgconn.CommandTag{}, nil
}

func (o *outage) is(refuses, silent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuses, o.silent = refuses, silent
}

// asked is how often for a sign of life.
func (o *outage) asked() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pings
}

func (o *outage) calls() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.taken)
}

// breaking is a Limiter with a Breaker, on the server's pool.
func breaking(t *testing.T, o *outage, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(o, o, config(func(c *pglimit.Config) {
		c.Breaker.Off, c.Timeout = false, time.Second
		change(c)
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// opened waits until the Limiter has found out, with a caller every 100 ms.
func opened(t *testing.T, limiter *pglimit.Limiter, within time.Duration) {
	t.Helper()
	began := time.Now()
	for limiter.Stats().Open == 0 {
		if time.Since(began) > within {
			t.Fatalf("not open after %v: %+v", time.Since(began), limiter.Stats())
		}
		go func() { _, _ = limiter.Allow(t.Context(), fmt.Sprint("k", time.Since(began))) }()
		time.Sleep(100 * time.Millisecond)
	}
}

// From the outage to the recovery, as its callers see it.
func TestTheBreaker(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
			o := newOutage()
			var log bytes.Buffer
			limiter := breaking(t, o, func(c *pglimit.Config) {
				change(c)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			})
			o.is(!silent, silent)
			opened(t, limiter, 4*time.Second) // with one lane: a call, its end a second after its caller's, and another
			later(250 * time.Millisecond)     // what was under way has been given up
			if n := limiter.Stats().Waiting; n != 0 {
				t.Errorf("%d are waiting still", n)
			}
			// Now nobody waits, but for one in 200 ms who asks for a sign of life.
			calls, pings, before := o.calls(), o.asked(), limiter.Stats()
			var work sync.WaitGroup
			began := time.Now()
			waited := 0
			var mu sync.Mutex
			for time.Since(began) < 10*time.Second {
				work.Go(func() {
					asked := time.Now()
					_, err := limiter.Allow(t.Context(), "k")
					mu.Lock()
					defer mu.Unlock()
					if time.Since(asked) > 0 || pglimit.CauseOf(err) != pglimit.CauseBreaker {
						waited++
					}
					if !errors.Is(err, pglimit.ErrUnavailable) {
						t.Error(err)
					}
				})
				time.Sleep(10 * time.Millisecond)
			}
			work.Wait()
			since := limiter.Stats().Since(before)
			if n := o.asked() - pings; n != waited || o.calls() != calls || n > 50 || n < 7 || !silent && n < 40 {
				t.Errorf("silent %t: %d calls, %d signs of life asked for, %d waited", silent, o.calls()-calls, n, waited)
			}
			if since.Failed[pglimit.CauseBreaker] != int64(1000-waited) || since.Failed.Total() != 1000 || since.Open != 1 {
				t.Errorf("%+v", since)
			}
			// The first who asks after the recovery is served, and all after it.
			o.is(false, false)
			later(250 * time.Millisecond)
			for range 20 {
				if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || d.Source != pglimit.FromDatabase {
					t.Errorf("%+v, %v", d, err)
				}
			}
			if stats := limiter.Stats(); stats.Open != 0 || decided(stats) != 20 {
				t.Errorf("%+v", stats)
			}
			lines := log.String()
			if strings.Count(lines, "Postgres does not answer; until it does, requests fail at once") != 1 || strings.Count(lines, "Postgres answers again") != 1 {
				t.Error(lines)
			}
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			later(time.Minute)
		})
	}
}

func TestFailLocalNeedsAnInstance(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{0, -1} {
		func() {
			defer func() {
				if what, want := recover(), fmt.Sprintf("pglimit: FailLocal(%d): the number of instances that share the limit must be at least 1", instances); what != want {
					t.Errorf("%v, want %s", what, want)
				}
			}()
			pglimit.FailLocal(instances)
		}()
	}
}

// What the memory knows it says while the breaker is open, and in a transaction of the
// caller's there is none.
func TestWhatAnOpenBreakerDoesNotStop(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.Memory.Off = false })
		o.take = answer(pglimit.Decision{RetryAfter: time.Minute, ResetAfter: time.Minute})
		_, _ = limiter.Allow(t.Context(), "denied")
		o.take = fail(pglimit.ErrUnavailable)
		o.is(true, false)
		_, _ = limiter.Allow(t.Context(), "k")
		synctest.Wait()
		if limiter.Stats().Open != 1 {
			t.Fatal("it is not open")
		}
		if d, err := limiter.Allow(t.Context(), "denied"); err != nil || d.Allowed || d.Source != pglimit.FromMemory {
			t.Errorf("%+v, %v", d, err)
		}
		o.take = grantAll
		if d, err := limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "k"); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := limiter.Allow(t.Context(), "k"); pglimit.CauseOf(err) != pglimit.CauseBreaker {
			t.Error(err)
		}
	})
}

// slowPool has connections that are made in 10 ms, and counts how many are in use or made at once.
type slowPool struct {
	noDB
	mu         sync.Mutex
	down       bool
	used, most int
}

func (p *slowPool) travel() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return errors.New("connection refused")
	}
	return nil
}

func (p *slowPool) goes(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// peak is how many were in use or made at once since it was last asked.
func (p *slowPool) peak() (most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most, p.most = p.most, 0
	return most
}

func (p *slowPool) Exec(context.Context, string, ...any) (tag pgconn.CommandTag, err error) {
	return tag, p.travel()
}

func (p *slowPool) AcquireFunc(context.Context, func(*pgxpool.Conn) error) error {
	if err := p.travel(); err != nil {
		return err
	}
	p.mu.Lock()
	p.used++
	p.most = max(p.most, p.used)
	p.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	p.mu.Lock()
	p.used--
	p.mu.Unlock()
	return nil
}

// onSession asks the session for each take.
type onSession struct{ *fake }

func (s onSession) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	if _, err := session.Exec(ctx, "take"); err != nil {
		return nil, pglimit.ErrUnavailable
	}
	return grantAll(ctx, requests)
}

// When the server is back after an outage, callers do not all connect at once.
func TestAfterAnOutageCallsBeginSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := &slowPool{}
		limiter := newOn(t, pool, onSession{&fake{}}, func(c *pglimit.Config) { c.Breaker.Off, c.Timeout = false, time.Second })
		ask := func() (failed int) {
			var work sync.WaitGroup
			var mu sync.Mutex
			for range 50 {
				work.Go(func() {
					if _, err := limiter.Allow(t.Context(), "k"); err != nil {
						mu.Lock()
						failed++
						mu.Unlock()
					}
				})
			}
			work.Wait()
			return failed
		}
		if failed, most := ask(), pool.peak(); failed > 0 || most != 50 {
			t.Errorf("before: %d failed, %d at once", failed, most)
		}
		pool.goes(true)
		_ = ask()
		synctest.Wait() // for the question whether it lives
		pool.goes(false)
		later(time.Second)
		_, _ = limiter.Allow(t.Context(), "k") // which asks for the sign of life
		_ = pool.peak()
		if failed, most := ask(), pool.peak(); failed > 0 || most > 10 {
			t.Errorf("after: %d failed, %d at once", failed, most)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// OnError is asked of each request while the breaker is open. Each of four instances grants a quarter.
func TestFailLocalWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		onError := asked{answer: pglimit.FailLocal(4)} // 2.5 a second, 5 at once
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.OnError = onError.onError })
		o.is(true, false)
		for n := range 7 {
			d, err := limiter.Allow(t.Context(), "k")
			if err != nil || d.Allowed != (n < 5) || d.Source != pglimit.FromFallback || n >= 5 && d.RetryAfter != 400*time.Millisecond {
				t.Errorf("request %d: %+v, %v", n, d, err)
			}
			synctest.Wait()
		}
		for i, err := range onError.errs {
			if (pglimit.CauseOf(err) == pglimit.CauseBreaker) != (i > 0) {
				t.Errorf("%d: %v", i, err)
			}
		}
		if stats := limiter.Stats(); stats.Allowed[pglimit.FromFallback] != 5 || stats.Failed[pglimit.CauseBreaker] != 6 {
			t.Errorf("%+v", stats)
		}
	})
}

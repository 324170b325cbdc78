package pglimit_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

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

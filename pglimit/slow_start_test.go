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

func (s onSession) Take(ctx context.Context, session pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
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
		if failed := ask(); failed > 0 || pool.most != 50 {
			t.Errorf("before: %d failed, %d at once", failed, pool.most)
		}
		pool.down = true
		_ = ask()
		pool.down = false
		later(time.Second)
		_, _ = limiter.Allow(t.Context(), "k") // which asks for the sign of life
		pool.most = 0
		if failed := ask(); failed > 0 || pool.most > 10 {
			t.Errorf("after: %d failed, %d at once", failed, pool.most)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

package integration

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A service starts before its database does: the Limiter is there, and answers as it does in
// an outage; the migration waits; and from then on, Postgres decides.
func TestAServiceStartsBeforeItsDatabase(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(newDatabase(t))
	must(t, err)
	dial, up, tried := config.ConnConfig.DialFunc, atomic.Bool{}, make(chan struct{}, 1000)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		tried <- struct{}{}
		if !up.Load() {
			return nil, errors.New("connection refused, says the test")
		}
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)

	migrated := make(chan error, 1)
	go func() { migrated <- migrations.Up(soon(t, time.Minute), pool, migrations.WaitForServer()) }()
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, OnError: pglimit.FailOpen})
	<-tried
	for range 10 {
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || d.Source != pglimit.FromFallback {
			t.Errorf("before: %+v, %v", d, err)
		}
	}
	if err := migrations.Up(t.Context(), pool); err == nil {
		t.Error("a migration that is not to wait does")
	}
	select {
	case err := <-migrated:
		t.Fatalf("the migration has ended: %v", err)
	default:
	}
	up.Store(true)
	if err := <-migrated; err != nil {
		t.Fatal(err)
	}
	for {
		d, err := limiter.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if d.Source == pglimit.FromDatabase && d.Allowed {
			break
		}
	}

	// A password that is wrong does not become right.
	config.ConnConfig.User = "nobody_of_that_name"
	stranger, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(stranger.Close)
	if err := migrations.Up(soon(t, time.Minute), stranger, migrations.WaitForServer()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("as a stranger: %v", err)
	}
}

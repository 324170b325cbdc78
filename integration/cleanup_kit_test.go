package integration

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/strategies"
)

func cleanupStart(t *testing.T, pool *pgxpool.Pool, config cleanup.Config, s ...strategies.Strategy) *cleanup.Cleaner {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	c, err := cleanup.New(pool, s, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func cleanupStop(t *testing.T, c *cleanup.Cleaner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// cleanupPool is one more pool on the same database, as another instance has.
func cleanupPool(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	another, err := pgxpool.NewWithConfig(t.Context(), pool.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(another.Close)
	return another
}

func cleanupWithin[T any](t *testing.T, what string, events <-chan T) T {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(time.Minute):
		t.Fatalf("it takes too long until %s", what)
		panic("unreachable")
	}
}

func cleanupNoLocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if n := query[int64](t, pool, "select count(*) from pglimit.job_locks where until > clock_timestamp()"); n != 0 {
		t.Errorf("%d locks were left behind", n)
	}
}

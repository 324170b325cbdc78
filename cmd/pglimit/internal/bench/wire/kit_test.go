package wire

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
)

// server is one migrated throwaway for all tests.
var server = sync.OnceValues(func() (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		return nil, err
	}
	stop = s.Stop
	pool, err := pgxpool.New(ctx, s.URL(""))
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return s, migrations.Up(ctx, pool)
})

var stop = func() error { return nil }

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// serverURL skips where this machine can run no Postgres.
func serverURL(t testing.TB) string {
	t.Helper()
	s, err := server()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return s.URL("")
}

// open is a pool of so many connections whose round trips are counted.
func open(t testing.TB, url string, conns int32, latency time.Duration) (*pgxpool.Pool, *Meter) {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	must(t, err)
	config.MaxConns = conns
	// A pool pings a connection that was idle for a second, as one may be on a slow machine: that would be a trip more.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	var m Meter
	Wrap(&config.ConnConfig.Config, &m, latency)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool, &m
}

// trips returns how many round trips work makes.
func trips(m *Meter, work func()) int64 {
	before := m.Trips()
	work()
	return m.Trips() - before
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

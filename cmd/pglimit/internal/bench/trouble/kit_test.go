package trouble

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// startServer leaves nothing running if there is an error.
func startServer() (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, s.URL(""))
	if err == nil {
		err = migrations.Up(ctx, pool)
		pool.Close()
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// newPool is on a server of the test's own. It skips where this machine can run no Postgres.
func newPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	_, pool := newServer(t)
	return pool
}

func newServer(t *testing.T) (*pgserver.Server, *pgxpool.Pool) {
	t.Helper()
	s, err := startServer()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, s.Stop()) })
	pool, err := pgxpool.New(t.Context(), s.URL(""))
	must(t, err)
	t.Cleanup(pool.Close)
	return s, pool
}

var limit = rate.PerSecond(1_000_000).WithBurst(1000)

func request(limiter, key string) rate.Request {
	return rate.Request{Limiter: limiter, Key: key, Limit: limit, Tokens: 1, Unit: 1}
}

// newTarget makes rows for so many keys with the strategy, under a limiter of the test's name.
func newTarget(t *testing.T, pool *pgxpool.Pool, s rate.Strategy, keys int) Target {
	t.Helper()
	target := Target{
		Database: pool.Config().ConnConfig, Application: "trouble " + t.Name(),
		Table: "pglimit." + s.Name(), Limiter: t.Name(),
	}
	for i := range keys {
		target.Keys = append(target.Keys, fmt.Sprint("key ", i))
		_, err := s.Take(t.Context(), postgres.OnPool(pool), []rate.Request{request(target.Limiter, target.Keys[i])})
		must(t, err)
	}
	return target
}

// running is a plan under way.
type running struct {
	end    context.CancelFunc
	done   chan struct{}
	report Report
	err    error
}

func start(t *testing.T, p Plan, target Target) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{end: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.report, r.err = p.Run(ctx, target)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// stop ends the plan, which must not take long, and returns what it did.
func (r *running) stop(t *testing.T) Report {
	t.Helper()
	began := time.Now()
	r.end()
	<-r.done
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v to end", took)
	}
	must(t, r.err)
	return r.report
}

// locked returns the keys of the target whose rows somebody holds.
func locked(t *testing.T, pool *pgxpool.Pool, target Target) []string {
	t.Helper()
	where := ""
	if target.Limiter != "" {
		where = "where limiter = '" + target.Limiter + "'"
	}
	rows, err := pool.Query(t.Context(), fmt.Sprintf(`
		with free as materialized (select key from %[1]s %[2]s for key share skip locked)
		select key from %[1]s %[2]s except select key from free`, target.Table, where))
	must(t, err)
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	return keys
}

// awaitLocked returns once so many keys are locked.
func awaitLocked(t *testing.T, pool *pgxpool.Pool, target Target, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		keys := locked(t, pool, target)
		if len(keys) == n {
			return keys
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d keys are locked, want %d", len(keys), n)
		}
	}
}

// noSession fails the test if a session of the target is there; the server may need a moment to
// see that a client is gone.
func noSession(t *testing.T, pool *pgxpool.Pool, target Target) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		var left int
		must(t, pool.QueryRow(t.Context(), "select count(*) from pg_stat_activity where application_name = left($1, 63)", target.Application).Scan(&left))
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are left", left)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

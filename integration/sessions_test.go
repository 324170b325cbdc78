package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Tools for playing two sessions against each other step by step.

// begin a transaction that the test moves by hand.
func begin(t *testing.T, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	must(t, tx.Commit(t.Context()))
}

func execute(t testing.TB, db database, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t testing.TB, db database, sql string, args ...any) (value T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// whileBlocked starts call and, once Postgres says that it waits for a lock (or it
// has ended, as one that never waits does), runs then and waits for the call.
func whileBlocked(t *testing.T, pool *pgxpool.Pool, call, then func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	for !query[bool](t, pool, `select exists (
			select from pg_locks join pg_stat_activity using (pid) where datname = current_database() and not granted)`) {
		select {
		case <-done:
			then()
			return
		case <-time.After(time.Millisecond):
		}
	}
	then()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the call still waits")
	}
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// database is what a pool, a connection and a transaction of pgx have in common.
type database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// taken repeats a take that took nothing, as it may be on a busy machine, unless it is in a
// transaction of the caller's.
func taken[D any](db database, take func() ([]D, error)) ([]D, error) { return takenOn(on(db), take) }

func takenOn[D any](session pglimit.Session, take func() ([]D, error)) ([]D, error) {
	decisions, err := take()
	for n := 0; n < 20 && errors.Is(err, pglimit.ErrNothingTaken) && session.Autocommits(); n++ {
		decisions, err = take()
	}
	return decisions, err
}

// on is the session of a strategy on it.
func on(db database) pglimit.Session {
	switch db := db.(type) {
	case postgres.Pool:
		return postgres.OnPool(db)
	case postgres.Tx:
		return postgres.InTx(db)
	case *pgxpool.Conn:
		return postgres.OnConn(db.Conn())
	case *pgx.Conn:
		return postgres.OnConn(db)
	}
	panic(fmt.Sprintf("no session on a %T", db))
}

// The application uses all connections of the pool that it shares with a Limiter. The error says so,
// and it is no outage. (Of a *sql.DB that cannot be known: there is no connection but the pool's. So
// there the breaker is off.)
func TestTheErrorNamesAPoolThatOthersUse(t *testing.T) {
	t.Parallel()
	// The breaker looks for a sign of life for half of that: on a busy machine it may take seconds to connect.
	config := pglimit.Config{Name: "api", Limit: hours, Timeout: 8 * time.Second}
	late := func(t *testing.T, limiter *pglimit.Limiter, want bool) {
		t.Helper()
		_, err := limiter.Allow(t.Context(), "k")
		if !errors.Is(err, pglimit.ErrUnavailable) || strings.Contains(err.Error(), "all 2 connections of its pool are in use") != want {
			t.Fatal(err)
		}
		if open := limiter.Stats().Open; open > 0 {
			t.Errorf("the breaker is open: %d", open)
		}
	}
	t.Run("pgx", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, databaseURL(newMigrated(t)), 2)
		begin(t, pool)
		begin(t, pool)
		late(t, newLimiter(t, pool, strategies.TokenBucket{}, config), true)
	})
	t.Run("another program holds the row", func(t *testing.T) {
		t.Parallel()
		admin := newMigrated(t)
		take(t, admin, strategies.TokenBucket{}, "k", hours)
		execute(t, begin(t, admin), "update pglimit.token_bucket set limiter = 'api'")
		late(t, newLimiter(t, newPool(t, databaseURL(admin), 2), strategies.TokenBucket{}, config), false)
	})
	t.Run("database/sql", func(t *testing.T) {
		t.Parallel()
		db := openSQL(t, sqlDrivers[0].open, databaseURL(newMigrated(t)), 2)
		for range 2 {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
		}
		config := config
		config.Breaker.Off = true
		late(t, newSQLLimiter(t, db, config), true)
	})
}

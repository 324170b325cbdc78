package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

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

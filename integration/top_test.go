package integration

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// counting is the configuration of a limiter of one token an hour whose denials all come from Postgres.
func counting(name string, top *pglimit.Top) pglimit.Config {
	return pglimit.Config{
		Name: name, Limit: pglimit.PerHour(1), Timeout: time.Minute, Top: top,
		Memory: pglimit.Memory{Off: true}, Breaker: pglimit.Breaker{Off: true},
	}
}

// askTimes asks so often for each key, and close the limiter.
func askTimes(t *testing.T, limiter *pglimit.Limiter, times map[string]int) {
	t.Helper()
	for key, n := range times {
		for range n {
			_, err := limiter.Allow(t.Context(), key)
			must(t, err)
		}
	}
	must(t, limiter.Close(t.Context()))
}

func shownAs(keys []pglimit.TopKey) (lines []string) {
	for _, k := range keys {
		lines = append(lines, fmt.Sprintf("%s %s -%d,%d,%d +%d,%d,%d", k.Limiter, k.Key,
			k.Denied1m, k.Denied10m, k.Denied60m, k.Granted1m, k.Granted10m, k.Granted60m))
	}
	return lines
}

// Who is limited most, over all processes, whatever their driver, until the rows are an hour old.
func TestTopAddsUpAllProcesses(t *testing.T) {
	t.Parallel()
	eachSQLDriver(t, func(t *testing.T, pool *pgxpool.Pool, open func(maxConns int) *sql.DB) {
		db := open(2)
		one := pglimit.TopFrom(pool, pglimit.TopConfig{})
		limiter := newLimiter(t, pool, strategies.TokenBucket{}, counting("api", one))
		askTimes(t, limiter, map[string]int{"ann": 4, "ümlaut": 2})
		limiter = newLimiter(t, pool, strategies.TokenBucket{}, counting("login", one))
		askTimes(t, limiter, map[string]int{"ann": 3})
		limiter = newSQLLimiter(t, db, counting("api", pglimit.TopFromSQL(db, pglimit.TopConfig{})))
		askTimes(t, limiter, map[string]int{"ann": 10, "bob": 1})

		top := func(query pglimit.TopQuery, want ...string) {
			t.Helper()
			keys, err := one.Keys(t.Context(), query)
			must(t, err)
			if got := shownAs(keys); !slices.Equal(got, want) {
				t.Errorf("%+v: %q, want %q", query, got, want)
			}
		}
		top(pglimit.TopQuery{}, "api ann -13,13,13 +1,1,1", "login ann -2,2,2 +1,1,1", "api ümlaut -1,1,1 +1,1,1")
		top(pglimit.TopQuery{Limiter: "api", Limit: 1, Minutes: 1}, "api ann -13,13,13 +1,1,1")
		top(pglimit.TopQuery{Limiter: "api", Granted: true, Minutes: 60},
			"api ann -13,13,13 +1,1,1", "api bob -0,0,0 +1,1,1", "api ümlaut -1,1,1 +1,1,1")
		own, err := newSQLLimiter(t, db, counting("login", nil)).Top(t.Context(), pglimit.TopQuery{})
		if got := shownAs(own); err != nil || !slices.Equal(got, []string{"login ann -2,2,2 +1,1,1"}) {
			t.Errorf("%q, %v", got, err)
		}
		for _, query := range []pglimit.TopQuery{{Minutes: 5}, {Limit: -1}} {
			var invalid *pglimit.RequestError
			if _, err := one.Keys(t.Context(), query); !errors.As(err, &invalid) {
				t.Errorf("%+v: %v", query, err)
			}
		}

		older := func(by time.Duration) {
			execute(t, pool, "update pglimit.top_keys set at_ns = at_ns - $1::bigint where limiter = 'api'", int64(by))
		}
		login := "login ann -2,2,2 +1,1,1"
		older(time.Minute)
		top(pglimit.TopQuery{}, "api ann -0,13,13 +0,1,1", login, "api ümlaut -0,1,1 +0,1,1")
		older(9 * time.Minute)
		top(pglimit.TopQuery{}, login)
		top(pglimit.TopQuery{Minutes: 60, Limit: 1}, "api ann -0,0,13 +0,0,1")
		cleaned := func(want int64) {
			t.Helper()
			config := cleanup.Config{Logger: slog.New(slog.DiscardHandler), BatchSize: 1, Pause: -1}
			cleaner, err := cleanup.New(db, strategies.All(), config)
			must(t, err)
			report, err := cleaner.RunOnce(t.Context())
			must(t, err)
			if report.Removed != want || len(report.Strategies) != len(strategies.All()) {
				t.Errorf("removed %d rows, want %d: %+v", report.Removed, want, report)
			}
		}
		cleaned(0)
		older(50 * time.Minute)
		top(pglimit.TopQuery{Minutes: 60}, login)
		cleaned(2)
		if left := query[int](t, pool, "select count(*) from pglimit.top_keys"); left != 1 {
			t.Errorf("%d rows are left", left)
		}
	})
}

// With a secret, no key is stored as it is, and who has the key and the secret finds its line.
func TestTopStoresNoKeyWithASecret(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	top := pglimit.TopFrom(pool, pglimit.TopConfig{HashKeys: bytes.Repeat([]byte("secret"), 3)})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, counting("api", top))
	askTimes(t, limiter, map[string]int{"ann@example.org": 3, "bob@example.org": 2})
	keys, err := top.Keys(t.Context(), pglimit.TopQuery{})
	must(t, err)
	want := []string{
		"api " + top.Shown("ann@example.org") + " -2,2,2 +1,1,1", "api " + top.Shown("bob@example.org") + " -1,1,1 +1,1,1",
	}
	if got := shownAs(keys); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	stored := query[string](t, pool, "select string_agg(k::text, '; ') from pglimit.top_keys k")
	if strings.Contains(stored, "example") || !strings.Contains(stored, "hmac:") {
		t.Error(stored)
	}
}

// A service whose role may not write the numbers, or whose database does not have the table yet, decides all the same.
func TestTopDisturbsNobody(t *testing.T) {
	t.Parallel()
	for what, then := range map[string]string{
		"permission denied": "revoke all on pglimit.top_keys from %s", "not migrated": "drop table pglimit.top_keys cascade",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			admin := newMigrated(t)
			role := newRole(t, databaseURL(admin))
			text, err := migrations.Grants(role, migrations.ToDecide)
			must(t, err)
			execute(t, admin, text)
			execute(t, admin, strings.ReplaceAll(then, "%s", role))
			pool := migrationPool(t, databaseURL(admin), as(role))
			var log bytes.Buffer
			top := pglimit.TopFrom(pool, pglimit.TopConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			for range 3 {
				askTimes(t, newLimiter(t, pool, strategies.TokenBucket{}, counting("api", top)), map[string]int{"ann": 3})
			}
			if logged := log.String(); strings.Count(logged, "\n") != 1 || !strings.Contains(logged, what) {
				t.Errorf("logged:\n%s", logged)
			}
		})
	}
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// newBouncer starts a PgBouncer in front of the test's server, as people run it: a server
// connection is a client's for a transaction, and there are fewer of them than clients.
func newBouncer(t *testing.T) *pgserver.Server {
	t.Helper()
	b, err := pgserver.StartBouncer(t.Context(), serverFor(t).url, map[string]string{
		"pool_mode":         "transaction",
		"default_pool_size": "4",
	})
	if errors.Is(err, pgserver.ErrNoBouncer) && os.Getenv("CI") != "true" {
		t.Skipf("%v: apt-get install pgbouncer", err)
	}
	must(t, err)
	t.Cleanup(func() {
		if err := b.Stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// behind is the URL of the pool's database through the PgBouncer, in that mode of pgx's;
// none: whatever the default is.
func behind(t *testing.T, b *pgserver.Server, pool *pgxpool.Pool, mode string) string {
	t.Helper()
	u, err := url.Parse(b.URL(pool.Config().ConnConfig.Database))
	must(t, err)
	if mode != "" {
		u.RawQuery += "&default_query_exec_mode=" + mode
	}
	return u.String()
}

// Everything that strategies do, by more callers than connections and more connections than PgBouncer has: in the modes
// of pgx that leave nothing behind on a connection it is as without PgBouncer. In the others calls fail, with an error
// that says what to set. In none is more granted than there is.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	b := newBouncer(t)
	for mode, loses := range map[string]bool{
		"exec":            false,
		"simple_protocol": false,
		"cache_describe":  false,
		"cache_statement": true, // named statements, of which PgBouncer knows since 1.21, if it is told to
		"describe_exec":   true, // a nameless one, from one round trip to the next
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			direct := setUp(t, nil)
			pool := newPool(t, behind(t, b, direct, mode), 12)
			for _, strategy := range strategies.All() {
				want := strategyOutcomes(t.Context(), "one", on(direct), strategy)
				limit := inParts(strategy, hours.WithBurst(50))
				var granted atomic.Int64
				var work sync.WaitGroup
				for caller := range pooledCallers {
					work.Go(func() {
						if name := fmt.Sprint("caller ", caller); !loses {
							all := strategyOutcomes(t.Context(), name, on(pool), strategy)
							locked := func(got string) bool { return strings.Contains(got, pglimit.ErrLocked.Error()) }
							for range 20 { // a sweep of the others' may hold a row for longer than a call waits
								if !slices.ContainsFunc(all, locked) {
									break
								}
								name += " again"
								all = strategyOutcomes(t.Context(), name, on(pool), strategy)
							}
							for i, got := range all {
								got = strings.ReplaceAll(got, name, "one")
								if got != want[i] && !strings.Contains(got, ": sweep: ") { // of the others' rows too
									t.Errorf("got  %s\nwant %s", got, want[i])
								}
							}
						}
						for range 6 {
							decisions, err := strategy.Take(t.Context(), on(pool), asks(limit, "shared"))
							switch {
							case err == nil:
								granted.Add(decisions[0].Granted)
							case errors.Is(err, pglimit.ErrNothingTaken): // because of the others
							case !loses, !strings.Contains(err.Error(), "default_query_exec_mode=exec"), !strings.Contains(err.Error(), "max_prepared_statements"):
								t.Error(err)
							}
						}
					})
				}
				work.Wait()
				owed := limit.Burst - takeAll(t, direct, strategy, ask("shared", limit, 0, 1))[0].Remaining
				if n := granted.Load(); n > limit.Burst || n > owed || !loses && (n != owed || n == 0) {
					t.Errorf("%s: %d of %d tokens were granted, and %d are owed", strategy.Name(), n, limit.Burst, owed)
				}
			}
		})
	}
}

const pooledCallers = 18

// A statement that was lost says nothing of the server, which has answered: others are not
// turned away for it.
func TestLostStatementsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	b, direct := newBouncer(t), newMigrated(t)
	var limiters [2]*pglimit.Limiter
	for i := range limiters {
		pool := newPool(t, behind(t, b, direct, "cache_statement"), 1)
		limiters[i] = newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours})
		defer func() { must(t, limiters[i].Close(context.WithoutCancel(t.Context()))) }()
	}
	// One after the other they are on one connection to the server, where the second finds
	// the statements of the first.
	if _, err := limiters[0].Allow(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		_, err := limiters[1].Allow(t.Context(), "k")
		if err == nil {
			t.Skip("this PgBouncer tells prepared statements apart")
		}
		if !strings.Contains(err.Error(), "default_query_exec_mode=exec") || pglimit.CauseOf(err) != pglimit.CausePooler {
			t.Errorf("cause %v: %v", pglimit.CauseOf(err), err)
		}
	}
	if stats := limiters[1].Stats(); stats.Open > 0 || stats.Failed[pglimit.CausePooler] != 5 {
		t.Errorf("%+v", stats)
	}
}

// Migrations and cleanup say it too.
func TestLostStatementsAreExplained(t *testing.T) {
	t.Parallel()
	b, direct := newBouncer(t), newMigrated(t)
	pools := [2]*pgxpool.Pool{}
	for i := range pools {
		pools[i] = newPool(t, behind(t, b, direct, "cache_statement"), 2)
	}
	for name, call := range map[string]func(*pgxpool.Pool) error{
		"Up": func(pool *pgxpool.Pool) error { return migrations.Up(t.Context(), pool) },
		"SetStorage": func(pool *pgxpool.Pool) error {
			return migrations.SetStorage(t.Context(), pool, migrations.Logged)
		},
		"cleanup": func(pool *pgxpool.Pool) error {
			cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				_, err = cleaner.RunOnce(t.Context())
			}
			return err
		},
	} {
		_ = call(pools[0]) // which leaves its statements there
		if err := call(pools[1]); err == nil {
			t.Skip("this PgBouncer tells prepared statements apart")
		} else if !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Each command is a process of its own, and all meet on the same connection to the server.
func cliWorksBehindPgBouncer(t *testing.T, c cli) {
	b := newBouncer(t)
	c, direct := c.on(t)
	through := behind(t, b, direct, "")
	c.env = []string{"DATABASE_URL=" + through}

	c.run(t, "migrate", "status", "--check").exits(t, 1)
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "functions        applied 20")
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "functions        applied 20")
	for _, strategy := range []string{"token_bucket", "exclusion_range"} { // what strategies send is TestBehindPgBouncer
		c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", strategy).exits(t, 0)
		c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", strategy).exits(t, 1)
		c.run(t, "peek", "k", "--limit", "1/1h", "--strategy", strategy).exits(t, 0).prints(t, "0 of 1 left")
		c.run(t, "reset", "k", "--strategy", strategy).exits(t, 0)
		c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", strategy, "--durability", "durable").exits(t, 0)
		c.run(t, "reset", "--all", "--limiter", "cli", "--strategy", strategy).exits(t, 0).prints(t, "1 row removed")
	}
	execute(t, direct, `insert into pglimit.upsert (key, limiter, full_ns, token_ns, at_ns) select 'gone:' || i, 'cli', 1000, 1000, 1 from generate_series(1, 30) i`)
	for _, removed := range []string{`"removed":30`, `"removed":0`} {
		c.run(t, "cleanup", "--once", "--output", "json").exits(t, 0).prints(t, removed)
	}
	for _, change := range [][]string{
		{"set", "api", "k", "--limit", "1/h", "--note", "why", "--expires", "1h"}, {"set", "api", "k", "--limit", "2/h", "--note", "why", "--dry-run"},
		{"set", "api", "k", "--limit", "2/h", "--note", "why"}, {"disable", "api", "k", "--note", "why"}, {"enable", "api", "k", "--note", "why"},
		{"explain", "api", "k"}, {"list"}, {"history"}, {"export"}, {"off", "--all", "--note", "why"}, {"on", "--all", "--note", "why"},
		{"delete", "api", "k", "--note", "why"}, {"set", "api", "--limit", "9/h", "--note", "why"},
	} {
		c.run(t, append([]string{"limits"}, change...)...).exits(t, 0)
	}
	c.run(t, "storage", "unlogged").exits(t, 0)
	c.run(t, "storage").exits(t, 0).prints(t, "unlogged")
	c.run(t, "storage", "logged").exits(t, 0)
	c.run(t, "migrate", "status", "--check").exits(t, 0)

	// Two servers do not meet each other's statements, although no mode is set.
	var servers [2]string
	for i := range servers {
		_, servers[i], _ = c.serves(t, "--config", limitersFile(t, "{file: {limit: 1000000/s}}"), "--no-cleanup", "--drain", "0")
	}
	for n := range 20 {
		for _, url := range servers {
			for path, body := range map[string]string{"/readyz": "", "/v1/allow": fmt.Sprintf(`{"requests":[{"limiter":"file","key":"k%d"},{"limiter":"api","key":"k%[1]d"}]}`, n)} {
				status, answer, err := sends(t, url+path, body)
				for err == nil && strings.Contains(answer, `"cause":"timeout"`) { // the machine is slow, which is another answer
					status, answer, err = sends(t, url+path, body)
				}
				if err != nil || status != http.StatusOK || strings.Contains(answer, "error") {
					t.Errorf("%s: %d %s %v", path, status, answer, err)
				}
			}
		}
	}

	// What would be the next client's trouble.
	pool := migrationPool(t, through+"&default_query_exec_mode=exec", func(c *pgxpool.Config) { delete(c.ConnConfig.RuntimeParams, "TimeZone") })
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})})
	if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Rule == nil {
		t.Errorf("%+v, %v", d, err)
	}
	must(t, limiter.Close(t.Context()))
	for _, left := range []string{
		"select name from pg_prepared_statements",
		"select locktype || coalesce(relation::regclass::text, '') from pg_locks where database = (select oid from pg_database where datname = current_database()) and pid <> pg_backend_pid() " +
			"and pid in (select pid from pg_stat_activity where backend_type = 'client backend')", // and not of autovacuum
		"select locktype from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
		// PgBouncer sets these to what a client has.
		"select name || '=' || setting from pg_settings where source = 'session' and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')",
	} {
		// The servers go on writing: what is left behind stays.
		until(t, "nothing is left behind that this finds: "+left, func() bool { return len(texts(t, pool, left)) == 0 })
	}
	c.run(t, "migrate", "down", "--to", "0", "--yes").exits(t, 0).prints(t, "tables           pending\n")
}

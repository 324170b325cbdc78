package deploy_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// newDatabase on the server of the shop, and its URL: a copy of migrated, or of template1. It is gone with the server.
func newDatabase(t *testing.T, template string) (pool *pgxpool.Pool, urlFor func(user string) string) {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	if _, err := shop.pool.Exec(t.Context(), "create database "+name+" template "+template); err != nil {
		t.Fatal(err)
	}
	config := shop.pool.Config().ConnConfig
	urlFor = func(user string) string {
		u := strings.Replace(config.ConnString(), "/"+config.Database+"?", "/"+name+"?", 1)
		return strings.Replace(u, "//"+config.User+":", "//"+user+":", 1)
	}
	return newPool(t, urlFor(config.User)), urlFor
}

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func run(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// numbers of a collector, by name and value of the label, as in "rows upsert".
func numbers[D promlimit.DB](t *testing.T, db D, logger *slog.Logger) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(promlimit.NewDatabase(db, logger))
	families, err := registry.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "pglimit_database_")
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			all[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return all
}

// become waits until the numbers are these: the server counts with a delay of a second, or when a connection ends.
func become(t *testing.T, db *pgxpool.Pool, want map[string]float64) map[string]float64 {
	t.Helper()
	db.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		got, missing := numbers(t, db, nil), []string(nil)
		for name, value := range want {
			if has, there := got[name]; !there || has != value {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return got
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%q of %v, want %v", missing, got, want)
		}
	}
}

func TestTheNumbersOfTheDatabase(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "template1")
	if got := numbers(t, pool, nil); got["up"] != 1 || len(got) != 1+4+8 {
		t.Errorf("before it is migrated: %v", got)
	}
	must(t, migrations.Up(t.Context(), pool))
	limiter, err := pglimit.New(pool, strategies.Upsert{}, pglimit.Config{Name: "api", Limit: pglimit.PerHour(3), Timeout: pglimit.NoTimeout, Combine: pglimit.Combine{Off: true}})
	must(t, err)
	defer func() { _ = limiter.Close(context.Background()) }()
	for _, key := range []string{"a", "b"} {
		for range 5 { // one insert, two updates, and two denials that write nothing
			if _, err := limiter.Allow(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Permits of several holders, of which one has expired, of three limiters.
	run(t, pool, `select pglimit.acquire('imports', 'imports', 9, 5, '1 hour', 'ann'), pglimit.acquire('imports', 'other', 9, 1, '1 hour', 'ben'), pglimit.acquire('jobs', 'jobs', 9, 2, '1 hour', 'cy'), pglimit.acquire('over', 'over', 9, 2, '1 hour', 'dee')`)
	run(t, pool, `update pglimit.permits set until_ns = '{1}' where limiter = 'over'`)
	got := become(t, pool, map[string]float64{
		"limiter_rows api upsert": 2, "limiter_rows imports permits": 2, "permits imports": 6, "permits jobs": 2, "permits over": 0,
		"up": 1, "rows upsert": 2, "inserts_total upsert": 2, "updates_total upsert": 4, "hot_updates_total upsert": 4, "deletes_total upsert": 0,
		"vacuums_total upsert": 0, "unlogged upsert": 0, "dead_rows upsert": 4, "rows token_bucket": 0, "lock_waiters": 0, "deadlocks_total": 0,
		"locks AccessExclusiveLock": 0, "locks RowExclusiveLock": 0,
	})
	if got["table_bytes upsert"] < 16<<10 || got["wal_bytes_total"] < 100_000 || got["stats_reset_timestamp_seconds"] < 1e9 {
		t.Errorf("%v", got)
	}
	if _, ran := got["cleanup_run_timestamp_seconds"]; ran {
		t.Error("a cleanup ran that nobody started")
	}

	// With an index on what it changes, an update is not HOT.
	run(t, pool, `create index on pglimit.upsert (full_ns)`)
	run(t, pool, `update pglimit.upsert set full_ns = full_ns + 1 where key = 'a'`)
	become(t, pool, map[string]float64{"updates_total upsert": 5, "hot_updates_total upsert": 4})

	run(t, pool, `vacuum pglimit.upsert`)
	must(t, migrations.SetStorage(t.Context(), pool, migrations.Unlogged))
	run(t, pool, `delete from pglimit.upsert where key = 'a'`)
	run(t, pool, `insert into pglimit.schedule values ('pglimit.cleanup', to_timestamp(5), to_timestamp(65)), ('another', to_timestamp(6), to_timestamp(66))`)
	become(t, pool, map[string]float64{
		"rows upsert": 1, "deletes_total upsert": 1, "vacuums_total upsert": 1, "unlogged upsert": 1, "unlogged schedule": 0,
		"cleanup_run_timestamp_seconds": 5, "cleanup_due_timestamp_seconds": 65,
	})

	// More rows than are counted: the statistics' number.
	run(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) select n::text, 'api', 1, 1, 1 from generate_series(1, 20000) n`)
	// A rewritten table is not in shared_buffers.
	run(t, pool, `vacuum full pglimit.token_bucket`)
	got = become(t, pool, map[string]float64{"rows token_bucket": 20000})
	if rows, told := got["limiter_rows api token_bucket"]; told {
		t.Errorf("of 20,000 rows, %v are of the limiter", rows)
	}
	if pages := got["table_bytes token_bucket"] / 8192; got["blocks_read_total token_bucket"] < pages/2 || got["blocks_read_total upsert"] > pages/2 {
		t.Errorf("%v blocks read, %v of upsert, of %v pages", got["blocks_read_total token_bucket"], got["blocks_read_total upsert"], pages)
	}
	run(t, pool, `delete from pglimit.token_bucket where key::int > 9999`)
	become(t, pool, map[string]float64{"rows token_bucket": 9999, "limiter_rows api token_bucket": 9999, "dead_rows token_bucket": 10001})
	for limiters, told := range map[int]bool{100: true, 101: false} {
		run(t, pool, fmt.Sprintf(`update pglimit.token_bucket set limiter = (key::int %% %d)::text`, limiters))
		if _, there := numbers(t, pool, nil)["limiter_rows 7 token_bucket"]; there != told {
			t.Errorf("of %d limiters, the rows of each are told: %t", limiters, there)
		}
	}
}

// Whoever scrapes does not read a large table, of which nearly all rows are gone.
func TestALargeTableIsNotRead(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "migrated")
	run(t, pool, `alter table pglimit.token_bucket set (fillfactor = 10, autovacuum_enabled = off)`) // few rows make many pages
	run(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) select n::text, 'api', 1, 1, 1 from generate_series(1, 60000) n`)
	run(t, pool, `analyze pglimit.token_bucket`)
	run(t, pool, `delete from pglimit.token_bucket where key <> '7'`)
	got := become(t, pool, map[string]float64{"deletes_total token_bucket": 59999})
	if rows, bytes := got["rows token_bucket"], got["table_bytes token_bucket"]; rows < 50_000 || bytes < 64<<20 {
		t.Errorf("%v rows of %v bytes were counted", rows, bytes)
	}
}

// A take waits for a row that somebody else holds.
func TestLocksAreCounted(t *testing.T) {
	t.Parallel()
	pool, _ := newDatabase(t, "migrated")
	limiter, err := pglimit.New(pool, strategies.Upsert{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1000), Timeout: pglimit.NoTimeout})
	must(t, err)
	defer func() { _ = limiter.Close(context.Background()) }()
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := limiter.On(pglimit.InTx(tx)).Allow(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := numbers(t, pool, nil); got["lock_waiters"] != 0 || got["locks RowExclusiveLock"] == 0 {
		t.Errorf("nobody waits: %v", got)
	}
	decided := make(chan error, 1)
	go func() {
		_, err := limiter.Allow(t.Context(), "k")
		decided <- err
	}()
	// Somebody waits for the whole table. A lock that is waited for is not held.
	table := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), `do 'begin lock table pglimit.upsert in share mode; end'`)
		table <- err
	}()
	become(t, pool, map[string]float64{"lock_waiters": 2, "locks ShareLock": 0})
	must(t, tx.Rollback(t.Context()))
	if err := errors.Join(<-decided, <-table); err != nil {
		t.Error(err)
	}
	become(t, pool, map[string]float64{"lock_waiters": 0, "locks RowExclusiveLock": 0})
}

// Tables of a database that was copied from another one have the same numbers in pg_locks.
func TestLocksOfAnotherDatabaseAreNotCounted(t *testing.T) {
	t.Parallel()
	pool, urlFor := newDatabase(t, "migrated")
	config := pool.Config().ConnConfig
	pool.Close() // nobody may use what is copied
	run(t, shop.pool, "create database "+config.Database+"_copy template "+config.Database)
	url := urlFor(config.User)
	copied := newPool(t, strings.Replace(url, config.Database, config.Database+"_copy", 1))
	tx, err := copied.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	const lock = "lock table pglimit.upsert in exclusive mode"
	if _, err := tx.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := copied.Exec(t.Context(), "do 'begin "+lock+"; end'")
		waits <- err
	}()
	become(t, copied, map[string]float64{"locks ExclusiveLock": 1, "lock_waiters": 1})
	if got := numbers(t, newPool(t, url), nil); got["locks ExclusiveLock"] != 0 || got["lock_waiters"] != 0 {
		t.Errorf("of another database: %v", got)
	}
	if err := errors.Join(tx.Rollback(t.Context()), <-waits); err != nil {
		t.Error(err)
	}
}

// blocked is a database that does not answer until it is released.
type blocked struct {
	asked    atomic.Int32
	released chan struct{}
}

func (b *blocked) Connect(context.Context) (driver.Conn, error) {
	b.asked.Add(1)
	<-b.released
	return nil, errors.New("released")
}

func (*blocked) Driver() driver.Driver { return nil }

// Anybody who reaches /metrics may ask, and takes no more than one connection from the decisions.
func TestScrapesShareTheQueries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &blocked{released: make(chan struct{})}
		db := sql.OpenDB(server)
		collector, metrics := promlimit.NewDatabase(db, nil), make(chan prometheus.Metric, 10)
		var scrapes sync.WaitGroup
		for range cap(metrics) {
			scrapes.Go(func() { collector.Collect(metrics) })
		}
		synctest.Wait()
		if asked := server.asked.Load(); asked != 1 {
			t.Errorf("%d connections", asked)
		}
		close(server.released)
		scrapes.Wait()
		_ = db.Close()
		if len(metrics) != cap(metrics) {
			t.Errorf("%d scrapes have a number", len(metrics))
		}
	})
}

// A role sees what its rights let it see, and the rest does not fail.
func TestWhatARoleMaySee(t *testing.T) {
	t.Parallel()
	pool, urlFor := newDatabase(t, "migrated")
	password := shop.pool.Config().ConnConfig.Password
	run(t, pool, `insert into pglimit.schedule values ('pglimit.cleanup', now(), now())`)
	run(t, pool, `insert into pglimit.upsert select n::text, 'api', 1, 1, 1 from generate_series(1, 7) n`)
	become(t, pool, map[string]float64{"inserts_total upsert": 7})
	// Rights on the tables, but not on their schema.
	run(t, pool, "create role outside login password '"+password+"'")
	run(t, pool, `grant select on all tables in schema pglimit to outside`)
	if got := numbers(t, newPool(t, urlFor("outside")), nil); got["up"] != 1 || got["rows upsert"] != 7 || got["cleanup_due_timestamp_seconds"] != 0 {
		t.Errorf("outside: %v", got)
	}
	for role, purpose := range map[string]migrations.Purpose{"nobody_": "", "decides": migrations.ToDecide, "sweeps": migrations.ToDecideAndSweep} {
		run(t, pool, "create role "+role+" login password '"+password+"'")
		if purpose != "" {
			grants, err := migrations.Grants(role, purpose)
			must(t, err)
			run(t, pool, grants)
		}
		var log bytes.Buffer
		got := numbers(t, newPool(t, urlFor(role)), slog.New(slog.NewTextHandler(&log, nil)))
		_, scheduled := got["cleanup_due_timestamp_seconds"]
		if got["up"] != 1 || got["rows upsert"] != 7 || scheduled != (purpose == migrations.ToDecideAndSweep) || log.Len() > 0 {
			t.Errorf("%s: %v %s", role, got, log.String())
		}
	}
}

// A scrape does not fail with the database.
func TestADatabaseThatCannotBeRead(t *testing.T) {
	t.Parallel()
	pool, urlFor := newDatabase(t, "migrated")
	gone := newPool(t, urlFor(shop.pool.Config().ConnConfig.User))
	gone.Close()
	var log bytes.Buffer
	if got := numbers(t, gone, slog.New(slog.NewTextHandler(&log, nil))); len(got) != 1 || got["up"] != 0 || !strings.Contains(log.String(), "closed pool") {
		t.Errorf("%v %s", got, log.String())
	}
	// A migration holds a table: the scrape gives up.
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "lock table pglimit.upsert in access exclusive mode")
		began := time.Now()
		if got := numbers(t, pool, nil); len(got) != 1 || got["up"] != 0 || time.Since(began) < time.Second {
			t.Errorf("%v after %v", got, time.Since(began))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPromlintFindsNothing(t *testing.T) {
	t.Parallel()
	problems, err := testutil.GatherAndLint(shop.registry)
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

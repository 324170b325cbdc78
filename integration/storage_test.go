package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func wantStorage(t *testing.T, pool *pgxpool.Pool, want migrations.Storage) {
	t.Helper()
	tables, err := migrations.ReadStorage(t.Context(), pool)
	must(t, err)
	for _, table := range tables {
		if table.Storage != want {
			t.Errorf("%s is %s, not %s", table.Table, table.Storage, want)
		}
	}
	if want := len(strategies.All()) + 2; len(tables) != want { // token_bucket has three
		t.Errorf("%d tables, want %d: %v", len(tables), want, tables)
	}
}

// Setting the storage changes that of all strategies, of nothing else, and nothing that
// is in them, their indexes and their settings included. Back and forth leaves no trace.
func TestStorageIsOfTheBucketsAndForgetsNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.Every(time.Hour)
	for _, s := range strategies.All() {
		take(t, pool, s, "k", limit)
	}
	others := func() []string {
		return texts(t, pool, `select relname || ' ' || relpersistence::text from pg_class
			where relnamespace = 'pglimit'::regnamespace and relkind = 'r' and relname in ('schedule', 'goose_db_version') order by 1`)
	}
	logged := others()
	before := catalogOf(t, pool)
	wantStorage(t, pool, migrations.Logged)
	for _, storage := range []migrations.Storage{migrations.Unlogged, migrations.Unlogged, migrations.Logged} {
		must(t, migrations.SetStorage(t.Context(), pool, storage))
		wantStorage(t, pool, storage)
		if got := others(); fmt.Sprint(got) != fmt.Sprint(logged) || len(got) != 2 {
			t.Errorf("%s: %v, were %v", storage, got, logged)
		}
		for _, s := range strategies.All() {
			if d := take(t, pool, s, "k", limit); d.Allowed {
				t.Errorf("%s: %s has forgotten what was taken", storage, s.Name())
			}
		}
	}
	diff(t, "unlogged and back", before, catalogOf(t, pool))
	if err := migrations.SetStorage(t.Context(), pool, "in memory"); err == nil || !strings.Contains(err.Error(), `"unlogged"`) {
		t.Errorf("an unknown storage: %v", err)
	}
}

// Callers who take while the tables are rewritten under them wait, and get what is theirs.
func TestStorageChangesUnderLoad(t *testing.T) {
	t.Parallel()
	for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, strategies.ForUpdateNowait{}} {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan audit.Report)
			go func() {
				report, _ := load{
					strategy: strategy, pools: twoPools(t, pool, 16), limit: pglimit.PerSecond(50).WithBurst(5), callers: 16, keys: 5, costs: []int64{1, 2},
				}.run(ctx, t)
				done <- report
			}()
			for _, storage := range []migrations.Storage{migrations.Unlogged, migrations.Logged} {
				must(t, migrations.SetStorage(t.Context(), pool, storage))
			}
			stop()
			if report := <-done; !report.OK() || report.Granted == 0 {
				t.Error(report)
			}
		})
	}
}

// Whoever holds a table is not queued behind for longer than a second: the others go on,
// and the change is made when the table is free.
func TestStorageWaitsWithoutStoppingOthers(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerSecond(1000)
	holder := begin(t, pool)
	take(t, holder, strategies.TokenBucket{}, "held", limit) // and does not commit
	var said strings.Builder
	done := make(chan error)
	go func() {
		done <- migrations.SetStorage(t.Context(), pool, migrations.Unlogged, migrations.WithLogger(slog.New(slog.NewTextHandler(&said, nil))))
	}()
	eventually(t, pool, `select exists (select from pg_locks l join pg_database d on d.oid = l.database and d.datname = current_database()
		where l.mode = 'AccessExclusiveLock' and not l.granted)`)
	// A take of others comes through when the wait is given up.
	others := rate.Request{Limiter: "test", Key: "others", Limit: limit, Tokens: 1, Unit: 1}
	if _, err := (strategies.TokenBucket{}).Take(soon(t, time.Minute), on(pool), []rate.Request{others}); err != nil {
		t.Errorf("others are queued behind it: %v", err)
	}
	commit(t, holder)
	must(t, <-done)
	wantStorage(t, pool, migrations.Unlogged)
	if !strings.Contains(said.String(), "level=WARN") || !strings.Contains(said.String(), "55P03") {
		t.Errorf("it says %q, and not that it had to wait", said.String())
	}

	// And for ever only if it is let.
	again := begin(t, pool)
	take(t, again, strategies.TokenBucket{}, "held", limit)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := migrations.SetStorage(ctx, pool, migrations.Logged); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	wantStorage(t, pool, migrations.Unlogged)
}

func TestStorageErrors(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, role := migrationPool(t, url), newRole(t, url)
	for _, pool := range []*pgxpool.Pool{admin, migrationPool(t, url, as(role))} {
		_, err := migrations.ReadStorage(t.Context(), pool)
		wantLine(t, err, "pglimit migrate up")
		wantLine(t, migrations.SetStorage(t.Context(), pool, migrations.Unlogged), "pglimit migrate up")
	}
	must(t, migrations.Up(t.Context(), admin))
	pool := migrationPool(t, url, as(role))
	wantStorage(t, pool, migrations.Logged) // anybody may read it
	execute(t, admin, `grant usage on schema pglimit to `+role+`; grant all on all tables in schema pglimit to `+role)
	err := migrations.SetStorage(t.Context(), pool, migrations.Unlogged)
	wantCode(t, err, "42501")
	wantLine(t, err, "only the owner")
	wantStorage(t, pool, migrations.Logged)
}

// What the documentation says that unlogged tables do: a grant writes next to no WAL
// there (the commit's record only), and after a crash of the server every bucket is
// full. Logged ones remember. It needs a server of its own to crash.
func TestUnloggedTablesAreEmptyAfterACrash(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a server, and crashes it")
	}
	server, err := pgserver.Start(t.Context(), pgserver.Options{})
	if err != nil {
		t.Skipf("no server of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	pool := newPool(t, server.URL("postgres"), 4)
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	must(t, migrations.SetStorage(t.Context(), pool, migrations.Unlogged))
	execute(t, pool, `alter table pglimit.upsert set logged`)
	limit := pglimit.Every(time.Hour)
	const rounds, grants = 3, 50
	walPerGrant := func(s strategies.Strategy) int64 {
		least := int64(math.MaxInt64) // the least of some rounds: what else the server writes comes now and then
		for round := range rounds {
			before := query[string](t, pool, `select pg_current_wal_insert_lsn()::text`)
			for i := range grants {
				r := rate.Request{Limiter: "test", Key: fmt.Sprint(round*grants + i), Limit: limit, Tokens: 1, Unit: 1, Durability: pglimit.Durable}
				if d, err := s.Take(t.Context(), on(pool), []rate.Request{r}); err != nil || !d[0].Allowed {
					t.Fatal(d, err)
				}
			}
			least = min(least, query[int64](t, pool, `select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::bigint`, before)/grants)
		}
		return least
	}
	unlogged, logged := walPerGrant(strategies.TokenBucket{}), walPerGrant(strategies.Upsert{})
	t.Logf("bytes of WAL per grant: %d unlogged, %d logged", unlogged, logged)
	if unlogged > 80 || logged < 150 {
		t.Errorf("bytes of WAL per grant: %d unlogged, %d logged", unlogged, logged)
	}

	crash(t, pool)
	if n := query[int](t, pool, `select count(*)::int from pglimit.token_bucket`); n > 0 {
		t.Errorf("%d rows survive in the unlogged table", n)
	}
	if d := take(t, pool, strategies.TokenBucket{}, "1", limit); !d.Allowed {
		t.Errorf("after the crash: %+v", d)
	}
	if d := take(t, pool, strategies.Upsert{}, "1", limit); d.Allowed {
		t.Error("the logged table has forgotten a durable grant")
	}
}

// crash kills a backend of the server, which then ends all others, and recovers.
func crash(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	victim, err := pgx.Connect(ctx, databaseURL(pool))
	must(t, err)
	witness, err := pgx.Connect(ctx, databaseURL(pool))
	must(t, err)
	_, _ = victim.Exec(ctx, `copy (select) to program 'kill -9 $PPID'`) // its own
	for err == nil {
		err = witness.Ping(ctx) // until it is ended: from then on nobody is let in before the recovery
	}
	for pool.Reset(); pool.Ping(ctx) != nil; pool.Reset() {
		if ctx.Err() != nil {
			t.Fatal("the server does not come back")
		}
	}
}

func cliSetsStorage(t *testing.T, c cli) {
	c, pool := c.on(t)
	c.run(t, "storage", "unlogged").fails(t, "pglimit migrate up")
	c.run(t, "storage").fails(t, "pglimit migrate up")
	c.run(t, "migrate", "up").exits(t, 0)
	c.run(t, "storage").exits(t, 0).prints(t, "TABLE", "pglimit.token_bucket          logged\n")
	c.run(t, "storage", "unlogged").exits(t, 0).prints(t, "pglimit.token_bucket          unlogged\n", "pglimit.token_bucket_answers  unlogged\n", "pglimit.exclusion_range       unlogged\n")
	wantStorage(t, pool, migrations.Unlogged)
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	var out struct {
		Tables []struct{ Table, Storage string }
	}
	must(t, json.Unmarshal([]byte(c.run(t, "storage", "logged", "--output", "json").exits(t, 0).stdout), &out))
	if len(out.Tables) != len(strategies.All())+2 || out.Tables[0].Table != "pglimit.token_bucket" || out.Tables[0].Storage != "logged" {
		t.Errorf("%+v", out)
	}
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 1)
	execute(t, begin(t, pool), `select from pglimit.token_bucket for update`) // for longer than anybody waits
	process, wait := c.started(t, "level=WARN", "storage", "unlogged")
	endsSoon(t, process, wait, 130)
	wantStorage(t, pool, migrations.Logged)
	c.run(t, "storage", "status").fails(t, `invalid argument "status"`)
}

// The report says which storage was measured. A named database is not changed. (A throwaway
// is made as it is wished: see benchStartsAServer.)
func benchMeasuresUnloggedTables(t *testing.T, c cli) {
	short := []string{"--strategies", "token_bucket,upsert", "--limit", "1000000/1s", "--published", "--duration", "100ms"}
	storages := func(report benchReport) (all string) {
		for _, run := range report.Runs {
			all += run.Storage + " "
		}
		return strings.TrimSpace(all)
	}
	named, pool := c.onMigrated(t)
	if got := storages(named.bench(t, 0, short...)); !strings.HasPrefix(got, "logged logged logged") || strings.Contains(got, "unlogged") {
		t.Errorf("as migrated: %s", got)
	}
	named.run(t, "bench", "--unlogged", "--duration", "300ms").fails(t, "--unlogged is for a throwaway", "pglimit storage unlogged")
	wantStorage(t, pool, migrations.Logged)
	must(t, migrations.SetStorage(t.Context(), pool, migrations.Unlogged))
	if got := storages(named.bench(t, 0, short...)); !strings.HasPrefix(got, "unlogged unlogged logged") {
		t.Errorf("unlogged: %s", got)
	}
}

// What memory the tables need is read from the catalog: by any role, and beside whoever has a table locked.
func TestMemoryIsReadWithoutRightsAndLocks(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin, stranger := migrationPool(t, url), migrationPool(t, url, as(newRole(t, url)))
	read := func(pool *pgxpool.Pool) migrations.Memory {
		t.Helper()
		memory, err := migrations.ReadMemory(soon(t, time.Minute), pool)
		must(t, err)
		return memory
	}
	buffers := query[int64](t, admin, "select setting::bigint * 8192 from pg_settings where name = 'shared_buffers'")
	if m := read(stranger); m != (migrations.Memory{SharedBuffers: buffers}) || m.Short() {
		t.Errorf("not migrated: %+v, want %d of shared_buffers", m, buffers)
	}
	must(t, migrations.Up(t.Context(), admin))
	for _, table := range []string{"token_bucket", "upsert"} {
		execute(t, admin, "insert into pglimit."+table+" (key, limiter, full_ns, token_ns, at_ns) select n::text, 'api', 1, 1, 1 from generate_series(1, 5000) n")
		execute(t, admin, "vacuum (analyze) pglimit."+table)
	}
	want := query[int64](t, admin, `select sum(pg_relation_size(t) + pg_relation_size(t || '_pkey'))::bigint from unnest(array['pglimit.token_bucket', 'pglimit.upsert']) t`)
	holder := begin(t, admin)
	execute(t, holder, "lock table pglimit.token_bucket in access exclusive mode")
	// The other tables are empty, and have an index of a page.
	if m := read(stranger); m.Tables < want || m.Tables > want+200_000 || m.Short() {
		t.Errorf("%+v, want %d bytes and some empty tables", m, want)
	}
	must(t, holder.Rollback(t.Context()))

	// As after a vacuum of that many pages. Tables of others do not count.
	execute(t, admin, "create table public.orders (id int)")
	grow := "update pg_class set relpages = %d where oid = '%s'::regclass"
	execute(t, admin, fmt.Sprintf(grow, buffers/8192+1, "public.orders"))
	if m := read(stranger); m.Short() {
		t.Errorf("another table is large: %+v", m)
	}
	execute(t, admin, fmt.Sprintf(grow, buffers/8192+1, "pglimit.token_bucket_pkey"))
	if m := read(stranger); !m.Short() {
		t.Errorf("its index is larger than shared_buffers: %+v", m)
	}
}

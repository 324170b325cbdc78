package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// envCitus names a database of the coordinator of a Citus cluster, which lists its nodes. Its role must be a superuser.
const envCitus = "PGLIMIT_TEST_CITUS_URL"

var (
	citusDatabases atomic.Int64
	citusRoles     sync.Mutex
)

// clusterNodes are the nodes of the cluster that envCitus names: host and port, the coordinator's first.
func clusterNodes(t *testing.T) (nodes []string) {
	t.Helper()
	base := os.Getenv(envCitus)
	if base == "" {
		t.Skipf("needs a Citus cluster: set %s to the URL of a database of its coordinator, as a superuser", envCitus)
	}
	nodes = texts(t, newPool(t, base, 1), `select nodename || ':' || nodeport from pg_dist_node where noderole = 'primary' order by groupid`)
	if len(nodes) < 3 {
		t.Fatalf("the cluster has the nodes %q: want a coordinator and two workers", nodes)
	}
	return nodes
}

// newDatabases makes a database on each node of the cluster, without Citus, and returns the URLs: the coordinator's
// first.
func newDatabases(t *testing.T) (urls []string) {
	t.Helper()
	name := fmt.Sprintf("pglimit_test_%d_%d", os.Getpid(), citusDatabases.Add(1))
	for i, node := range clusterNodes(t) {
		u, err := url.Parse(os.Getenv(envCitus))
		must(t, err)
		if i > 0 {
			u.Host = node
		}
		maintenance := newPool(t, u.String(), 1)
		execute(t, maintenance, "create database "+name)
		t.Cleanup(func() {
			drop := func() error {
				_, err := maintenance.Exec(context.Background(), "drop database if exists "+name+" with (force)")
				return err
			}
			err := drop()
			for tries := 0; tries < 100 && postgres.Is(err, "55006"); tries++ { // a daemon of Citus's may come back meanwhile
				err = drop()
			}
			must(t, err)
		})
		u.Path = "/" + name
		urls = append(urls, u.String())
	}
	return urls
}

// addCitus makes the extension in the databases, and a cluster of them.
func addCitus(t *testing.T, urls []string) {
	t.Helper()
	for _, u := range urls {
		execute(t, newPool(t, u, 1), "create extension citus")
	}
	coordinator := newPool(t, urls[0], 1)
	citusRoles.Lock() // to add a node alters the roles, which all databases share
	defer citusRoles.Unlock()
	for i, node := range clusterNodes(t) {
		add := "citus_add_node"
		if i == 0 {
			add = "citus_set_coordinator_host"
		}
		host, port, err := net.SplitHostPort(node)
		must(t, err)
		execute(t, coordinator, "select "+add+"('"+host+"', "+port+")")
	}
}

// newCluster makes databases with Citus, and returns the URLs: the coordinator's first.
func newCluster(t *testing.T) []string {
	t.Helper()
	urls := newDatabases(t)
	addCitus(t, urls)
	return urls
}

// newDistributed makes a cluster whose tables are distributed, and returns a pool for each node.
func newDistributed(t *testing.T) []*pgxpool.Pool {
	t.Helper()
	var pools []*pgxpool.Pool
	for _, u := range newCluster(t) {
		pools = append(pools, newPool(t, u, 40))
	}
	must(t, migrations.Up(t.Context(), pools[0]))
	must(t, migrations.Distribute(t.Context(), pools[0]))
	return pools
}

func wantDistributed(t *testing.T, pool *pgxpool.Pool, tables int) {
	t.Helper()
	d, err := migrations.ReadDistribution(t.Context(), pool)
	must(t, err)
	if len(d.Tables) != tables || tables > 0 && (d.Nodes != 2 || d.Shards != 32) {
		t.Errorf("%+v: want %d tables over 2 nodes", d, tables)
	}
}

// wantDelegated wants each function that decides for one key to be run by the node that has the key.
func wantDelegated(t *testing.T, pool *pgxpool.Pool, functions int) {
	t.Helper()
	got := query[int](t, pool, `select count(*)::int from pg_dist_object o join pg_proc p on p.oid = o.objid and o.classid = 'pg_proc'::regclass
		where p.pronamespace = 'pglimit'::regnamespace and o.distribution_argument_index is not null and o.force_delegation
		and o.colocationid = (select colocationid from pg_dist_partition where logicalrelid = 'pglimit.token_bucket'::regclass)`)
	if got != functions {
		t.Errorf("%d functions are delegated, want %d", got, functions)
	}
}

const citusFunctions = 12

// Rows move with the tables, there and back, and nothing is forgotten: buckets, IDs, blocks and permits. Distributing
// twice changes nothing, and bringing the tables back leaves what was there before.
func TestCitusDistributesAndBringsBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newCluster(t)[0], 16)
	must(t, migrations.Up(t.Context(), pool))
	role := newRole(t, databaseURL(pool))
	execute(t, pool, "grant select on pglimit.buckets, pglimit.holders to "+role)
	// Citus writes the text of a view, and the settings of a function, in its own way.
	catalog := func() []string {
		return slices.DeleteFunc(catalogOf(t, pool), func(line string) bool { return strings.HasPrefix(line, "function") || strings.HasPrefix(line, "view") })
	}
	before := catalog()
	limit := pglimit.Every(time.Hour)
	block := &pglimit.Block{After: 1, Within: time.Hour, For: time.Hour, Max: time.Hour}
	s := strategies.TokenBucket{}
	request := func(key string) rate.Request {
		return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1}
	}
	one := func(r rate.Request) pglimit.Decision {
		t.Helper()
		d, err := s.Take(t.Context(), on(pool), []rate.Request{r})
		must(t, err)
		return d[0]
	}
	var first []pglimit.Decision
	for i := range 20 {
		k := strconv.Itoa(i)
		id, blocked := request("id "+k), request("block "+k)
		id.ID, id.IDTTL, blocked.Block = "x", time.Hour, block
		first = append(first, one(id))
		one(request("take " + k))
		one(blocked)
		one(blocked) // is denied, and blocks
		execute(t, pool, "select pglimit.acquire('test', 'p"+k+"', 1, ttl => '1 hour', holder => 'x')")
	}
	// A session that has planned its call does not go on where the tables were.
	old, err := pool.Acquire(t.Context())
	must(t, err)
	defer old.Release()
	for range 8 {
		_, err := s.Take(t.Context(), on(old), []rate.Request{request("old")})
		must(t, err)
	}
	check := func(when string) {
		t.Helper()
		for i := range 20 {
			k := strconv.Itoa(i)
			id, blocked := request("id "+k), request("block "+k)
			id.ID, id.IDTTL, blocked.Block = "x", time.Hour, block
			if d := one(id); !d.Allowed || !d.At.Equal(first[i].At) {
				t.Errorf("%s: the ID is forgotten: %+v", when, d)
			}
			if d := one(request("take " + k)); d.Allowed {
				t.Errorf("%s: what was taken is forgotten", when)
			}
			if d := one(blocked); !d.Blocked {
				t.Errorf("%s: the block is forgotten", when)
			}
			if query[bool](t, pool, "select acquired from pglimit.acquire('test', $1, 1)", "p"+k) {
				t.Errorf("%s: the permit is forgotten", when)
			}
		}
	}
	for range 2 {
		for range 2 {
			must(t, migrations.Distribute(t.Context(), pool))
			wantDistributed(t, pool, 4)
			wantDelegated(t, pool, citusFunctions)
		}
		check("distributed")
		_, err := s.Take(t.Context(), on(old), []rate.Request{request("old")})
		must(t, err)
		tx, err := old.Begin(t.Context())
		must(t, err)
		for _, k := range []string{"a", "b", "c", "d"} {
			_, err := s.Take(t.Context(), on(tx), []rate.Request{request("tx " + k)})
			must(t, err)
		}
		must(t, tx.Rollback(t.Context()))
		if d := one(request("tx a")); !d.Allowed {
			t.Error("a rollback keeps what was taken")
		}
		must(t, s.Reset(t.Context(), on(pool), "test", "tx a"))
		for range 2 {
			must(t, migrations.Undistribute(t.Context(), pool))
			wantDistributed(t, pool, 0)
		}
		check("brought back")
	}
	diff(t, "there and back", before, catalog())
}

// A call is decided by the node that has its key: also one whose session had planned it before, one in a transaction,
// and one that comes to another worker.
func TestCitusCallsGoToTheirNode(t *testing.T) {
	t.Parallel()
	var sent []string
	urls := newCluster(t)
	config, err := pgx.ParseConfig(urls[0])
	must(t, err)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if strings.HasPrefix(n.Message, "issuing SELECT pglimit.") {
			sent = append(sent, n.Message)
		}
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	pool := newPool(t, urls[0], 2)
	must(t, migrations.Up(t.Context(), pool))
	_, err = conn.Exec(t.Context(), "set citus.log_remote_commands = on; set client_min_messages = notice")
	must(t, err)
	s := strategies.TokenBucket{}
	takes := func(db database, key string) {
		t.Helper()
		_, err := s.Take(t.Context(), on(db), []rate.Request{{Limiter: "test", Key: key, Limit: pglimit.PerSecond(1), Tokens: 1, Unit: 1}})
		must(t, err)
	}
	for i := range 10 { // Postgres keeps a plan after five
		takes(conn, strconv.Itoa(i))
	}
	must(t, migrations.Distribute(t.Context(), pool))
	for i := range 10 {
		takes(conn, strconv.Itoa(i))
	}
	if len(sent) != 10 {
		t.Errorf("%d of 10 calls were sent to another node: %q", len(sent), sent)
	}
	tx, err := conn.Begin(t.Context())
	must(t, err)
	for i := range 10 {
		takes(tx, strconv.Itoa(i))
	}
	must(t, tx.Commit(t.Context()))
	if len(sent) != 20 {
		t.Errorf("%d of 10 calls in a transaction were sent to another node: %q", len(sent)-10, sent)
	}
	for _, u := range urls[1:] {
		worker := newPool(t, u, 2)
		for i := range 10 {
			takes(worker, strconv.Itoa(i))
		}
	}
	if n := query[int](t, pool, "select count(*)::int from pglimit.token_bucket"); n != 10 {
		t.Errorf("%d buckets", n)
	}
}

// A session that calls a function often keeps its plans, those of the shards too.
func TestCitusFunctionsKeepTheirPlans(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	execute(t, pools[0], "select pglimit.set_limit('table', '1000/s', note => 'x'), pglimit.set_limit('table', '3', action => 'places', note => 'x')")
	memory := func(conn *pgxpool.Conn) int {
		return query[int](t, conn, "select sum(total_bytes)::bigint from pg_backend_memory_contexts")
	}
	for _, call := range []string{
		"pglimit.token_bucket_take($1, 'take', 1000000000, 12000000000, 1, 1, null)",
		"pglimit.token_bucket_take_or_block($1, 'some', 1000000000, 12000000000, 5, 1, null, '{}')",
		"pglimit.token_bucket_take_or_block($1, 'block', 1000000000, 2000000000, 1, 1, null, '{3,1000000000,1000000,1000000,0}')",
		"pglimit.token_bucket_take($1, 'take', 2000000000, 12000000000, 1, 1, '20ms')",
		"pglimit.token_bucket_take($1, 'day', 1, 12, 1, 1, null, 'day UTC')",
		"pglimit.token_bucket_take($1, 'take', 1, 12, 1, 1, null, 'day UTC')",
		"pglimit.token_bucket_take($1, 'ahead', 1000000000, 12000000000, 1, 1, null, ahead_ns => 10000000000)",
		"pglimit.token_bucket_take_once($1, 'once', clock_timestamp()::text, 1000000000, 12000000000, 1, 1, null)",
		"pglimit.token_bucket_take_once($1, 'once', 'same', 1000000000, 120000000000, 1, 1000000000, null)",
		"pglimit.token_bucket_give_back($1, 'take', 1, 12, 1, pglimit.clock_ns(), 0, 'day UTC')",
		"pglimit.token_bucket_give_back($1, 'some', 1000000000, 12000000000, 1, pglimit.clock_ns(), 0)",
		"pglimit.token_bucket_lease($1, 'some', 1000000000, 120000000000, 1, 1, 1000000000, 0, 0, 0, true)",
		"pglimit.token_bucket_look($1, 'some', 1000000000)",
		"pglimit.allow('allow', $1, '10/s')", "pglimit.allow('table', $1)", "pglimit.peek('table', $1)",
		"pglimit.acquire('held', $1, 3, holder => 'x', ttl => '100 ms')", "pglimit.acquire('table', $1, ttl => '100 ms')",
		"pglimit.renew('held', $1, 'x')", "pglimit.release('held', $1, 'x')", "pglimit.reset('some', $1)",
	} {
		for _, pool := range pools {
			conn, err := pool.Acquire(t.Context())
			must(t, err)
			before := 0
			for round := range 24 {
				if round == 12 {
					before = memory(conn)
				}
				for _, key := range []string{"a", "b", "c"} {
					execute(t, conn, "select "+strings.ReplaceAll(call, "$1", "$1::text"), key)
				}
			}
			if after := memory(conn); after > before+512<<10 {
				t.Errorf("%s: 36 calls took %d bytes of the session's memory", call, after-before)
			}
			conn.Release()
		}
	}
}

// Tables are distributed and brought back while callers take, and while a transaction holds a row.
func TestCitusDistributesUnderLoad(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newCluster(t)[0], 40)
	must(t, migrations.Up(t.Context(), pool))
	limit := pglimit.PerSecond(40).WithBurst(5)
	limiter := newCitusLimiter(t, pool, pglimit.Config{Name: "test", Limit: limit, Timeout: 30 * time.Second, Memory: pglimit.Memory{Off: true}})
	must(t, second(limiter.Allow(t.Context(), "held")))
	var histories [16]audit.Histories
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for i := range histories {
		callers.Go(func() {
			for ctx.Err() == nil {
				request := pglimit.Request{Limiter: "test", Key: fmt.Sprint("k", rand.IntN(10)), Limit: limit, Tokens: 1, Unit: 1}
				d, err := limiter.Do(t.Context(), request)
				if err != nil {
					t.Error(err)
					return
				}
				histories[i].Record(request.Key, request.Tokens, request.Unit, d)
			}
		})
	}
	for _, change := range []func() error{
		func() error {
			return migrations.Distribute(t.Context(), pool, migrations.WithLockTimeout(50*time.Millisecond))
		},
		func() error {
			return migrations.Undistribute(t.Context(), pool, migrations.WithLockTimeout(50*time.Millisecond))
		},
	} {
		holder := begin(t, pool)
		execute(t, holder, "select from pglimit.token_bucket where key = 'held' for update")
		done := make(chan error, 1)
		go func() { done <- change() }()
		select {
		case err := <-done:
			t.Errorf("it did not wait for the row: %v", err)
		case <-time.After(300 * time.Millisecond): // some tries
		}
		must(t, holder.Rollback(t.Context()))
		must(t, <-done)
	}
	stop()
	callers.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	if report := all.Check(nil, limit); !report.OK() || report.Granted == 0 {
		t.Error(report)
	}
}

// A later migration keeps what is distributed so, and the functions of distributed tables. Up puts back what is not
// this release's.
func TestCitusLaterMigrationsKeepIt(t *testing.T) {
	t.Parallel()
	pool := newPool(t, newCluster(t)[0], 8)
	must(t, migrations.Up(t.Context(), pool))
	must(t, migrations.DownTo(t.Context(), pool, 2))
	wantLine(t, migrations.Distribute(t.Context(), pool), "pglimit migrate up")
	must(t, migrations.Up(t.Context(), pool))
	must(t, migrations.Distribute(t.Context(), pool))
	take(t, pool, strategies.TokenBucket{}, "k", pglimit.Every(time.Hour))
	for _, change := range []func(){
		func() { must(t, migrations.DownTo(t.Context(), pool, 2)) },
		func() { execute(t, pool, "drop function pglimit.token_bucket_take_shard, pglimit.token_bucket_take") },
	} {
		change()
		must(t, migrations.Up(t.Context(), pool))
		wantDistributed(t, pool, 4)
		wantDelegated(t, pool, citusFunctions)
		differ, err := migrations.Differences(t.Context(), pool)
		if err != nil || len(differ) > 0 {
			t.Errorf("%q, %v", differ, err)
		}
		if d := take(t, pool, strategies.TokenBucket{}, "k", pglimit.Every(time.Hour)); d.Allowed {
			t.Error("what was taken is forgotten")
		}
	}
	must(t, migrations.DownTo(t.Context(), pool, 0))
	must(t, migrations.Up(t.Context(), pool))
	wantDistributed(t, pool, 0)
}

// A database that was migrated before it had Citus is distributed as any other: each node decides.
func TestCitusAddedAfterTheMigration(t *testing.T) {
	t.Parallel()
	urls := newDatabases(t)
	coordinator := newPool(t, urls[0], 8)
	must(t, migrations.Up(t.Context(), coordinator))
	take(t, coordinator, strategies.TokenBucket{}, "before", pglimit.Every(time.Hour))
	addCitus(t, urls)
	must(t, migrations.Distribute(t.Context(), coordinator))
	for _, u := range urls {
		pool := newPool(t, u, 8)
		if d := take(t, pool, strategies.TokenBucket{}, "before", pglimit.Every(time.Hour)); d.Allowed {
			t.Error("what was taken is forgotten")
		}
		for i := range 20 {
			if key := u + strconv.Itoa(i); !query[bool](t, pool, "select acquired from pglimit.acquire('test', $1, 1)", key) {
				t.Error("no place")
			}
		}
		limiter := newCitusLimiter(t, pool, pglimit.Config{Name: u[len(u)-4:], Limit: pglimit.Every(time.Hour), Timeout: 30 * time.Second})
		_, err := limiter.DoEach(t.Context(), wants("a", "b", "c", "d", "e", "f")...)
		must(t, err)
		_, err = limiter.DoAll(t.Context(), wants("g", "h")...)
		must(t, err)
	}
}

// A node that cannot decide gets no keys: all is as it was before.
func TestCitusANodeThatCannotDecide(t *testing.T) {
	t.Parallel()
	urls := newCluster(t)
	pool := newPool(t, urls[0], 8)
	must(t, migrations.Up(t.Context(), pool))
	execute(t, newPool(t, urls[2], 1), "alter function pg_catalog.num_nonnulls(\"any\") rename to stopped")
	before := catalogOf(t, pool)
	if err := migrations.Distribute(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "num_nonnulls") {
		t.Error(err)
	}
	diff(t, "undone", before, catalogOf(t, pool))
	if d := take(t, pool, strategies.TokenBucket{}, "k", pglimit.Every(time.Hour)); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Where the tables cannot be distributed, the error says what to do.
func TestCitusRefuses(t *testing.T) {
	t.Parallel()
	wantLine(t, migrations.Distribute(t.Context(), newMigrated(t)), "no extension citus", "create extension citus")
	pools := newDistributed(t)
	wantLine(t, migrations.Distribute(t.Context(), pools[1]), "a worker", "connect to the coordinator")
	wantLine(t, migrations.SetStorage(t.Context(), pools[0], migrations.Unlogged), "Undistribute", "--undo")
	empty := newPool(t, newCluster(t)[0], 2)
	wantLine(t, migrations.Distribute(t.Context(), empty), "pglimit migrate up")
	execute(t, empty, "select citus_remove_node(nodename, nodeport) from pg_dist_node")
	wantLine(t, migrations.Distribute(t.Context(), empty), "citus_set_coordinator_host")
	wantLine(t, migrations.Up(t.Context(), pools[1]), "a worker", "connect to the coordinator")
}

// The sweep removes full buckets from each shard, and reset --all those of a limiter; views and limits see all nodes.
func TestCitusSweepResetViewsAndLimits(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	pool := pools[0]
	s := strategies.TokenBucket{}
	for i := range 40 {
		take(t, pool, s, strconv.Itoa(i), pglimit.PerSecond(1))
		execute(t, pool, fmt.Sprintf("select pglimit.allow('o''x\\%%s', '%d', '1/1h')", i))
	}
	execute(t, pool, "update pglimit.token_bucket set full_ns = full_ns - 100000000000, at_ns = at_ns - 100000000000 where limiter = 'test'")
	if n := query[int](t, pool, "select count(*)::int from pglimit.buckets"); n != 80 {
		t.Errorf("the view has %d buckets", n)
	}
	execute(t, pool, "select pglimit.set_limit('test', '5/1h', note => 'x')")
	if n := query[int](t, pool, "select pglimit.limit_reaches('test')::int"); n != 40 {
		t.Errorf("the limit is for %d buckets", n)
	}
	if left := query[int](t, pool, "select remaining::int from pglimit.allow('test', '7')"); left != 4 {
		t.Errorf("by the table %d are left", left)
	}
	_, err := pool.Exec(t.Context(), "select pglimit.allow('none', '7')")
	wantCode(t, err, "22023")
	places, err := semaphore.New(pools[1], semaphore.Config{Name: "none", FromTable: true, Timeout: 30 * time.Second})
	must(t, err)
	if _, _, err := places.TryAcquire(t.Context(), "7"); !errors.Is(err, semaphore.ErrNotSet) {
		t.Errorf("by a worker: %v, want ErrNotSet", err)
	}
	var swept int64
	for from, done := pglimit.Cursor(0), false; !done; {
		got, err := s.Sweep(t.Context(), on(pool), from, 1000)
		must(t, err)
		swept, from, done = swept+got.Removed, got.Next, got.Done
	}
	if swept != 39 { // not the one just taken from
		t.Errorf("%d rows were swept", swept)
	}
	removed, err := s.ResetAll(t.Context(), on(pool), `o'x\%s`)
	must(t, err)
	if n := query[int](t, pool, "select count(*)::int from pglimit.token_bucket"); removed != 40 || n != 1 {
		t.Errorf("%d rows were removed, %d are left", removed, n)
	}
}

// Never over, never undue, by callers of each node, while shards move under them: takes, IDs, blocks, refunds, permits.
func TestCitusIsExactWhileShardsMove(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	admin := newPool(t, databaseURL(pools[0]), 2)
	limit, s := pglimit.PerSecond(4).WithBurst(5), strategies.TokenBucket{}
	block := &pglimit.Block{After: 1_000_000, Within: time.Hour, For: time.Second, Max: time.Second}
	const callers, keys, places = 32, 4, 3
	var held [keys]atomic.Int64
	var all, refunded audit.Histories
	var mu sync.Mutex
	var work sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for i := range callers {
		pool := pools[i%len(pools)]
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			var mine, kept audit.Histories
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				all.Merge(&mine)
				refunded.Merge(&kept)
			}()
			for n := 0; ctx.Err() == nil; n++ {
				k := random.IntN(keys)
				kind := []string{"take", "id", "block", "refund", "permit"}[random.IntN(5)]
				key := kind + strconv.Itoa(k)
				r := rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1}
				switch kind {
				case "id":
					r.ID, r.IDTTL = fmt.Sprintf("%d %d", i, n), time.Hour
				case "block":
					r.Block = block
				case "permit":
					holder := fmt.Sprintf("%d %d", i, n)
					var acquired bool
					err := pool.QueryRow(t.Context(), "select acquired from pglimit.acquire('test', $1, $2, holder => $3)", key, places, holder).Scan(&acquired)
					if pg := (*pgconn.PgError)(nil); err != nil && (!errors.As(err, &pg) || pg.Code != "40001") { // "Nothing was changed. Ask again."
						t.Error(err)
						return
					}
					if acquired {
						if held[k].Add(1) > places {
							t.Error("more than the places are held")
						}
						held[k].Add(-1) // before it is given back
						if _, err := pool.Exec(t.Context(), "select pglimit.release('test', $1, $2)", key, holder); err != nil {
							t.Error(err)
							return
						}
					}
					continue
				}
				d, err := s.Take(t.Context(), on(pool), []rate.Request{r})
				if err != nil {
					t.Error(err)
					return
				}
				switch {
				case kind == "refund" && d[0].Allowed && random.IntN(2) == 0:
					if err := s.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: r, At: d[0].At}}); err != nil {
						t.Error(err)
						return
					}
				case kind == "refund":
					if d[0].Allowed {
						kept.Record(key, r.Tokens, r.Unit, d[0])
					}
				default:
					mine.Record(key, r.Tokens, r.Unit, d[0])
				}
				if kind == "id" && d[0].Allowed {
					again, err := s.Take(t.Context(), on(pool), []rate.Request{r})
					if err != nil || !again[0].At.Equal(d[0].At) {
						t.Errorf("the same ID: %+v, %v, was %+v", again, err, d[0])
						return
					}
				}
			}
		})
	}
	for round := range 2 {
		for _, mode := range []string{"block_writes", "force_logical"} {
			for _, key := range []string{"take1", "id2", "permit0"} {
				_, err := admin.Exec(t.Context(), `
					select citus_move_shard_placement(s.id, p.nodename, p.nodeport, n.nodename, n.nodeport, $2::text::citus.shard_transfer_mode)
					from (select get_shard_id_for_distribution_column('pglimit.token_bucket', $1::text) as id) s
					join pg_dist_shard_placement p on p.shardid = s.id
					join pg_dist_node n on n.shouldhaveshards and n.nodeport <> p.nodeport`, key, mode)
				if err != nil {
					t.Errorf("round %d, %s: %v", round, mode, err)
				}
			}
		}
	}
	stop()
	work.Wait()
	report := all.Check(s.Rule(), limit)
	t.Log(report)
	if !report.OK() || report.Granted == 0 {
		t.Error(report)
	}
	if report := refunded.Check(s.Rule(), limit); !report.OK() {
		t.Errorf("with refunds: %s", report)
	}
}

// The commands run; the SQL is what newCluster does; the Go compiles.
func TestCitusOfTheDocs(t *testing.T) {
	t.Parallel()
	examples, err := os.ReadFile("docs_examples_test.go")
	must(t, err)
	_, blocks := readPage(t, "citus.md")
	for _, b := range blocks {
		if b.language == "go" && !strings.Contains(unindented(string(examples)), unindented(b.code)) {
			t.Errorf("not in docs_examples_test.go:\n%s", b.code)
		}
	}
	urls := newCluster(t)
	c := cli{binary: builtCLI(t), env: []string{"DATABASE_URL=" + urls[0]}}
	for _, b := range blocks {
		if b.language == "sh" {
			c.runShell(t, 15, b.code)
		}
	}
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "the tables are distributed over 2 nodes, 32 shards\n")
	limiter, nodes, err := docsNodes(newPool(t, urls[0], 4), hours)
	must(t, err)
	if d, err := limiter.Allow(t.Context(), "user:42"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	must(t, limiter.Close(t.Context()))
	nodes.Close()
	c.run(t, "distribute", "--undo").exits(t, 0).prints(t, "the tables are not distributed\n")
}

package integration

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Every update stays in its page and touches no index, over 900 takes: the half-empty pages and the
// lack of an index on what changes see to it.
//
// Not parallel, and one caller: a transaction that lasts, of another test or because the machine is too busy to go on
// with it, keeps old versions of rows from being pruned, whatever the schema.
func TestEveryUpdateIsHOT(t *testing.T) {
	const takes, keys = 900, 300
	eachInTurn(t, hours, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Name() == "exclusion_range" {
			t.Skip("it inserts and never updates")
		}
		if strategy.Name() != "token_bucket" && testing.Short() {
			t.Skip("one strategy is enough for -short")
		}
		limit := pglimit.PerSecond(1_000_000)
		if strategy.Check(&rate.Request{Limit: limit}) != nil {
			limit.Burst = 1000
		}
		// What autovacuum reads to analyze a table keeps old versions, too, for as long as the machine is too busy to
		// go on with it.
		for _, table := range texts(t, pool, tablesOf) {
			execute(t, pool, "alter table pglimit."+table+" set (autovacuum_enabled = off)")
		}
		var granted int64
		random := rand.New(rand.NewPCG(1, 5))
		for range takes {
			d, err := tryTake(t, pool, strategy, strconv.Itoa(random.IntN(keys)), limit)
			must(t, err)
			granted += d.Granted
		}
		updates, hot := updateCounts(t, pool, strategy)
		if updates < granted-keys || granted < takes*9/10 {
			t.Fatalf("Postgres counted %d updates of %d takes, of which %d were granted", updates, takes, granted)
		}
		t.Logf("%d of %d updates were HOT", hot, updates)
		// Without room in the pages 89 in 100 are, with an index on what changes none.
		if hot < updates-updates/20 {
			t.Errorf("%d of %d updates were HOT", hot, updates)
		}
	})
}

// updateCounts reads Postgres's statistics, which sessions hand in when they are
// idle or end: the pool's sessions are ended first.
func updateCounts(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) (updates, hot int64) {
	t.Helper()
	watcher := newPool(t, databaseURL(pool), 1)
	pool.Reset()
	for query[int64](t, watcher, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'") > 0 {
	}
	err := watcher.QueryRow(t.Context(),
		"select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'pglimit' and relname = $1", strategy.Name(),
	).Scan(&updates, &hot)
	must(t, err)
	return updates, hot
}

// warmUp opens so many connections.
func warmUp(t *testing.T, pool *pgxpool.Pool, conns int) {
	t.Helper()
	var open []*pgxpool.Conn
	for range conns {
		conn, err := pool.Acquire(t.Context())
		must(t, err)
		open = append(open, conn)
	}
	for _, conn := range open {
		conn.Release()
	}
}

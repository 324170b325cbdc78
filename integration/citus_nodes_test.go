package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// newOnNodes is a limiter that asks the nodes of a cluster straight.
func newOnNodes(t *testing.T, coordinator *pgxpool.Pool, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	config.Nodes = pglimit.NodesFrom(coordinator, nil)
	limiter := newCitusLimiter(t, coordinator, config)
	t.Cleanup(config.Nodes.Close) // after the limiter, which is cleaned up before the pool
	return limiter
}

func newCitusLimiter(t *testing.T, pool *pgxpool.Pool, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, config)
	must(t, err)
	t.Cleanup(func() { must(t, limiter.Close(context.Background())) })
	return limiter
}

// untilStraight asks until calls go straight.
func untilStraight(t *testing.T, limiter *pglimit.Limiter) {
	t.Helper()
	for i := 0; limiter.Stats().StraightTrips == 0; i++ {
		_, err := limiter.Allow(t.Context(), fmt.Sprint("first ", i))
		must(t, err)
	}
}

// twoPhases is how many transactions are noted as committed in two phases, on all nodes.
func twoPhases(t *testing.T, pools []*pgxpool.Pool) (n int) {
	t.Helper()
	for _, pool := range pools {
		n += query[int](t, pool, "select count(*)::int from pg_dist_transaction")
	}
	return n
}

// Many callers of one limiter are served by calls to the nodes that have their keys, of one shard each, and no
// transaction is committed in two phases.
func TestCitusCallsGoStraight(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	limiter := newOnNodes(t, pools[0], pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1).WithBurst(4), Timeout: 30 * time.Second})
	untilStraight(t, limiter)
	phases, before := twoPhases(t, pools), limiter.Stats()
	var requests []pglimit.Request
	for i := range 500 {
		requests = append(requests, pglimit.Request{Key: fmt.Sprint("k", i%250), Tokens: int64(1 + i%4)})
	}
	for range 2 {
		decisions, err := limiter.DoEach(t.Context(), requests...)
		must(t, err)
		if len(decisions) != len(requests) {
			t.Fatalf("%d decisions", len(decisions))
		}
	}
	stats := limiter.Stats().Since(before)
	if stats.StraightTrips < stats.RoundTrips || stats.RoundTrips >= 500 || stats.Failed.Total() > 0 {
		t.Errorf("%d of %d calls went straight, %d failed", stats.StraightTrips, stats.RoundTrips, stats.Failed.Total())
	}
	if n := twoPhases(t, pools); n > phases {
		t.Errorf("%d transactions were committed in two phases", n-phases)
	}
}

// 64 callers ask about the same keys, on every node and through Nodes, while shards move to and fro.
func TestCitusAuditWhileShardsMove(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	limit := pglimit.PerSecond(40).WithBurst(10)
	config := pglimit.Config{Name: "test", Limit: limit, Timeout: 30 * time.Second, Memory: pglimit.Memory{Off: true}}
	straight := newOnNodes(t, pools[0], config)
	limiters := []*pglimit.Limiter{straight}
	for _, pool := range pools {
		limiters = append(limiters, newCitusLimiter(t, pool, config))
	}
	untilStraight(t, straight)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var histories [64]audit.Histories
	var callers sync.WaitGroup
	for i := range histories {
		callers.Go(func() {
			for ctx.Err() == nil {
				request := pglimit.Request{Limiter: "test", Key: fmt.Sprint("k", rand.IntN(50)), Limit: limit, Tokens: 1 + rand.Int64N(3)}
				request.Unit = request.Tokens
				d, err := limiters[i%len(limiters)].Do(t.Context(), request)
				if errors.Is(err, pglimit.ErrNothingTaken) {
					continue
				} else if err != nil {
					t.Error(err)
					return
				}
				histories[i].Record(request.Key, request.Tokens, request.Unit, d)
			}
		})
	}
	for i := range 6 {
		mode := []string{"block_writes", "force_logical"}[i%2]
		execute(t, pools[0], `select citus_move_shard_placement(s.shardid, a.nodename, a.nodeport, b.nodename, b.nodeport, '`+mode+`')
			from (select s.shardid, p.groupid from pg_dist_shard s join pg_dist_placement p using (shardid)
				where s.logicalrelid = 'pglimit.token_bucket'::regclass order by random() limit 1) s
			join pg_dist_node a on a.groupid = s.groupid join pg_dist_node b on b.groupid <> s.groupid and b.shouldhaveshards`)
	}
	cancel()
	callers.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	if report := all.Check(nil, limit); !report.OK() || report.Granted == 0 {
		t.Error(report)
	} else {
		t.Log(report)
	}
	if stats := straight.Stats(); stats.StraightTrips < stats.RoundTrips/2 {
		t.Errorf("%d of %d calls went straight", stats.StraightTrips, stats.RoundTrips)
	}
}

// The limiter knows for a second which node had a key.
func TestCitusNodesAreNotAskedWhenTheTablesAreBack(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	limiter := newOnNodes(t, pools[0], pglimit.Config{Name: "test", Limit: plenty, Timeout: 30 * time.Second})
	untilStraight(t, limiter)
	must(t, migrations.Undistribute(t.Context(), pools[0]))
	var requests []pglimit.Request
	for i := range 8 {
		requests = append(requests, pglimit.Request{Key: fmt.Sprint("key ", i), Tokens: 1})
	}
	for range 3 {
		decisions, err := limiter.DoEach(t.Context(), requests...)
		must(t, err)
		for i, d := range decisions {
			if !d.Allowed {
				t.Errorf("%s: %+v", requests[i].Key, d)
			}
		}
	}
}

// The keys of a batch are in bytewise order, whatever the database's collation is. (It decides on any table,
// distributed or not.)
func TestKeysOfABatchAreInBytewiseOrder(t *testing.T) {
	t.Parallel()
	server, name := serverFor(t), databaseName()
	if _, err := server.admin.Exec(t.Context(), "create database "+name+" template template0 encoding 'UTF8' locale_provider icu icu_locale 'en-US'"); err != nil {
		t.Skipf("this server has no such collation: %v", err)
	}
	t.Cleanup(func() { must(t, server.drop(name)) })
	pool := newPool(t, server.urlOf(name), 2)
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	alike, err := os.ReadFile("../migrations/functions/citus/token_bucket_take_alike.sql")
	must(t, err)
	execute(t, pool, string(alike))
	take := func(keys ...string) (usual, rest []int64) {
		must(t, pool.QueryRow(t.Context(), "select * from pglimit.token_bucket_take_alike($1, array(select i::int from generate_series(1, cardinality($1::text[])) i), 'test', 1000000000, 5000000000, 1, null)", keys).Scan(&usual, &rest))
		return usual, rest
	}
	take("a", "b")
	usual, rest := take("B", "C", "a", "b")
	if len(usual) != 8 || len(rest) != 16 || usual[0]+usual[4] != 7 || rest[0] != 1 || rest[8] != 2 {
		t.Errorf("usual %v, rest %v", usual, rest)
	}
}

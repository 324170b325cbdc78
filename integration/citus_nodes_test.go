package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
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

// A Limiter without Nodes, on a pool of any node, gets each decision too. A joint call meets distributed tables, takes
// nothing, and each key is asked for by itself; once the shards are known, the keys of one are asked for together.
func TestCitusCallsWithoutNodes(t *testing.T) {
	t.Parallel()
	for i, pool := range newDistributed(t) {
		limiter := newCitusLimiter(t, pool, pglimit.Config{Name: fmt.Sprint("test ", i), Limit: hours.WithBurst(5), Timeout: 30 * time.Second})
		for round, together := 0, false; !together; round++ {
			var requests []pglimit.Request
			for i := range 120 {
				requests = append(requests, pglimit.Request{Key: fmt.Sprint(round, " ", i%40), Tokens: 2})
			}
			before := limiter.Stats()
			decisions, err := limiter.DoEach(t.Context(), requests...)
			must(t, err)
			for i, d := range decisions {
				if d.Allowed != (i < 80) { // two of the three for each key
					t.Fatalf("round %d, request %d: %+v", round, i, d)
				}
			}
			together = limiter.Stats().Since(before).RoundTrips <= 32 // shards
		}
	}
}

// envCitusCrash is a shell command that crashes a worker of the cluster and starts it again.
const envCitusCrash = "PGLIMIT_TEST_CITUS_CRASH"

// Callers on each node, and straight, take from the same keys by everything that takes, while shards move and, if there
// is a command for that, a worker crashes: no key gets more than its limit. A denial may be undue: calls that failed
// may have taken, and what was reserved comes back.
func TestCitusSoak(t *testing.T) {
	t.Parallel()
	pools, crash := newDistributed(t), os.Getenv(envCitusCrash)
	limit := pglimit.PerSecond(4).WithBurst(10)
	config := pglimit.Config{Name: "test", Limit: limit, Timeout: 30 * time.Second, Memory: pglimit.Memory{Off: true}}
	limiters := []*pglimit.Limiter{newOnNodes(t, pools[0], config)}
	for _, pool := range pools {
		limiters = append(limiters, newCitusLimiter(t, pool, config))
	}
	untilStraight(t, limiters[0])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var histories [64]audit.Histories
	var failed atomic.Int64
	var callers sync.WaitGroup
	for i := range histories {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			l := limiters[i%len(limiters)]
			record := func(d pglimit.Decision) {
				histories[i].Add(d.Key, audit.Event{At: d.At.Add(d.Delay).UnixNano(), Granted: d.Granted}) // of a wait: when they were due
			}
			for n := 0; ctx.Err() == nil; n++ {
				r := pglimit.Request{Key: fmt.Sprint("k", random.IntN(20)), Tokens: 1 + random.Int64N(2)}
				other := pglimit.Request{Key: fmt.Sprint("k", 20+random.IntN(20)), Tokens: 1}
				var err error
				switch random.IntN(6) {
				case 0:
					var g pglimit.Group
					if g, err = l.DoAll(t.Context(), r, other); err == nil && g.Allowed {
						record(g.Decisions[0])
						record(g.Decisions[1])
					}
				case 1:
					waiting, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					var d pglimit.Decision
					if d, err = l.Wait(waiting, r.Key); err == nil {
						record(d)
					} else if waiting.Err() != nil || errors.Is(err, pglimit.ErrWaitTooLong) {
						err = nil
					}
					cancel()
				case 2:
					r.ID = fmt.Sprint(i, " ", n)
					fallthrough
				default:
					var d pglimit.Decision
					if d, err = l.Do(t.Context(), r); err == nil {
						record(d)
					}
				}
				if err != nil && (crash != "" || errors.Is(err, pglimit.ErrNothingTaken)) {
					failed.Add(1)
					<-time.After(20 * time.Millisecond) // a node that is down is asked no faster
				} else if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 6 {
		mode := []string{"block_writes", "force_logical"}[i%2]
		if _, err := pools[0].Exec(t.Context(), `
			select citus_move_shard_placement(s.shardid, a.nodename, a.nodeport, b.nodename, b.nodeport, $1::text::citus.shard_transfer_mode)
			from (select s.shardid, p.groupid from pg_dist_shard s join pg_dist_placement p using (shardid)
				where s.logicalrelid = 'pglimit.token_bucket'::regclass order by random() limit 1) s
			join pg_dist_node a on a.groupid = s.groupid join pg_dist_node b on b.groupid <> s.groupid and b.shouldhaveshards`, mode); err != nil && crash == "" {
			t.Error(mode, err)
		}
		if i == 2 && crash != "" {
			out, err := exec.CommandContext(t.Context(), "sh", "-c", crash).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
	}
	cancel()
	callers.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	report, stats := all.Check(nil, limit), limiters[0].Stats()
	t.Logf("%d calls failed, %d of %d went straight: %v", failed.Load(), stats.StraightTrips, stats.RoundTrips, report)
	if !report.OK() || report.Granted == 0 || stats.StraightTrips < stats.RoundTrips/2 {
		t.Error(report)
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

package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// keysApart returns a key of each node that has shards, in the order of the pools of workers.
func keysApart(t *testing.T, coordinator *pgxpool.Pool) []string {
	t.Helper()
	return query[[]string](t, coordinator, `
		select array_agg(k.key order by k.groupid)
		from (select p.groupid, min('k' || i) as key
			from generate_series(1, 200) i
			join pg_dist_placement p on p.shardid = get_shard_id_for_distribution_column('pglimit.token_bucket', 'k' || i)
			group by p.groupid) k`)
}

// Groups on distributed tables get the decisions that they get on one server: from each node, straight, by every
// driver, and in a transaction of the caller's.
func TestCitusGroupsAreDecidedAsOnOneServer(t *testing.T) {
	t.Parallel()
	pools, plain := newDistributed(t), newMigrated(t)
	config := pglimit.Config{Name: "test", Limit: hours.WithBurst(20), Timeout: 30 * time.Second, Memory: pglimit.Memory{Off: true}}
	limiters := []*pglimit.Limiter{newOnNodes(t, pools[0], config)}
	untilStraight(t, limiters[0])
	for _, pool := range pools {
		limiters = append(limiters, newCitusLimiter(t, pool, config))
	}
	for _, driver := range sqlDrivers {
		limiters = append(limiters, newSQLLimiter(t, openSQL(t, driver.open, databaseURL(pools[0]), 2), config))
	}
	onOne := newCitusLimiter(t, plain, config)
	random := rand.New(rand.NewPCG(3, 5))
	granted, denied, apart := 0, 0, keysApart(t, pools[0])
	for i := range 120 {
		var group []pglimit.Request
		for _, key := range random.Perm(10)[:2+random.IntN(3)] {
			group = append(group, pglimit.Request{Key: strconv.Itoa(i/40) + " " + strconv.Itoa(key), Tokens: 1 + random.Int64N(4)})
		}
		if i%3 == 0 {
			group[0].Key, group[1].Key = apart[1], apart[0]
		}
		want, err := onOne.DoAll(t.Context(), group...)
		must(t, err)
		limiter := limiters[i%len(limiters)]
		if i%7 == 0 { // first, in a transaction that is rolled back
			tx := begin(t, pools[i%len(pools)])
			for n := range 2 {
				got, err := limiter.On(pglimit.InTx(tx)).DoAll(t.Context(), group...)
				must(t, err)
				if n == 0 {
					sameGroup(t, fmt.Sprint(i, " in a transaction"), got, want)
				}
			}
			must(t, tx.Rollback(t.Context()))
		}
		got, err := limiter.DoAll(t.Context(), group...)
		must(t, err)
		sameGroup(t, strconv.Itoa(i), got, want)
		if want.Allowed {
			granted++
		} else {
			denied++
		}
	}
	if granted < 20 || denied < 20 {
		t.Errorf("%d groups were granted, %d denied", granted, denied)
	}
	owed := "select string_agg(key || ' ' || (full_ns - at_ns) / token_ns, ', ' order by key) from pglimit.token_bucket where key not like 'first%'"
	diff(t, "what is owed", strings.Split(query[string](t, plain, owed), ", "), strings.Split(query[string](t, pools[0], owed), ", "))
}

func sameGroup(t *testing.T, name string, got, want pglimit.Group) {
	t.Helper()
	same := got.Allowed == want.Allowed && got.Denied.Allowed == want.Denied.Allowed && (got.RetryAfter > 0) == (want.RetryAfter > 0)
	for i, d := range got.Decisions {
		w := want.Decisions[i]
		same = same && d.Key == w.Key && d.Allowed == w.Allowed && d.Granted == w.Granted && d.Remaining == w.Remaining && d.HasRow == w.HasRow
	}
	if !same {
		t.Errorf("group %s: %+v, want %+v", name, got, want)
	}
}

// 16 callers of every node, and straight, ask with groups and single requests about the same keys: each bucket is
// exact, each group is taken whole or not at all, and nobody fails.
func TestCitusGroupsAreExact(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	limit := pglimit.PerSecond(10).WithBurst(20)
	config := pglimit.Config{Name: "test", Limit: limit, Timeout: 30 * time.Second}
	limiters := []*pglimit.Limiter{newOnNodes(t, pools[0], config)}
	untilStraight(t, limiters[0])
	for _, pool := range pools {
		limiters = append(limiters, newCitusLimiter(t, pool, config))
	}
	report, groups, singles := groupLoad(soon(t, 3*time.Second), t, limiters, limit, 16, 8, func(i int) bool { return i%4 == i/4 }) // one of the four of each limiter
	t.Logf("%d groups and %d single requests were granted, %v", groups, singles, report)
	if !report.OK() || groups == 0 || singles == 0 {
		t.Error(report)
	}
}

// A group waits for a row that somebody else holds, and holds no other row meanwhile. An impatient one says which row
// it was.
func TestCitusGroupsWait(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	s, limit := strategies.TokenBucket{}, hours.WithBurst(10)
	keys := keysApart(t, pools[0])
	for _, known := range []bool{false, true} { // a row in the making, and one that is there
		for i, key := range keys {
			if known {
				take(t, pools[0], s, key, limit)
			}
			holder := begin(t, pools[0])
			take(t, holder, s, key, limit)
			impatient := asks(limit, keys...)
			impatient[0].Impatient = true
			_, err := s.Take(t.Context(), on(pools[0]), grouped(impatient))
			var held *pglimit.HeldError
			if !errors.As(err, &held) || len(held.Held) != 1 || held.Held[0].Key != key {
				t.Errorf("%v", err)
			}
			whileBlocked(t, pools[i+1], func() {
				if d := takeGroups(t, pools[0], asks(limit, keys...)); !d[0].Allowed || !d[1].Allowed {
					t.Errorf("%+v", d)
				}
			}, func() {
				take(t, pools[0], s, keys[1-i], limit) // nobody holds the other row
				must(t, holder.Rollback(t.Context()))
			})
			for _, key := range keys {
				must(t, s.Reset(t.Context(), on(pools[0]), "test", key))
			}
		}
	}
	_, err := s.Take(t.Context(), on(pools[0]), grouped(asks(limit, "a", "b"), asks(limit, "c")))
	if !errors.Is(err, pglimit.ErrNothingTaken) || query[int](t, pools[0], "select count(*)::int from pglimit.token_bucket") != 0 {
		t.Errorf("two groups in one call: %v", err)
	}
}

// Where the operator refuses groups, the error says so, and nothing is taken.
func TestCitusGroupsAreRefused(t *testing.T) {
	t.Parallel()
	pool := newDistributed(t)[0]
	execute(t, pool, "do $$ begin execute format('alter database %I set pglimit.groups = off', current_database()); end $$")
	for name, off := range map[string]bool{"off": true, "on": false} {
		limiter := newCitusLimiter(t, newPool(t, with(databaseURL(pool), "pglimit.groups", name), 2), pglimit.Config{Name: "test", Limit: hours.WithBurst(1)})
		g, err := limiter.DoAll(t.Context(), wants(keysApart(t, pool)...)...)
		if off && (!errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, pglimit.ErrNothingTaken) || !strings.Contains(err.Error(), "pglimit.groups")) || !off && (err != nil || !g.Allowed) {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
	limiter := newCitusLimiter(t, newPool(t, databaseURL(pool), 2), pglimit.Config{Name: "test", Limit: hours.WithBurst(1)})
	if _, err := limiter.DoAll(t.Context(), wants("a", "b")...); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("by the setting of the database: %v", err)
	}
	if d, err := limiter.Allow(t.Context(), "a"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
}

// A node that was lost between the two phases leaves a prepared part behind, which locks its key. Citus's recovery
// commits it if the transaction was committed, and else rolls it back.
func TestCitusGroupsAfterACrashBetweenThePhases(t *testing.T) {
	t.Parallel()
	pools := newDistributed(t)
	s, limit := strategies.TokenBucket{}, hours.WithBurst(10)
	key := keysApart(t, pools[0])[1]
	worker, shard := pools[2], query[string](t, pools[0], "select 'pglimit.token_bucket_' || get_shard_id_for_distribution_column('pglimit.token_bucket', $1::text)", key)
	for i, committed := range []bool{false, true} {
		take(t, pools[0], s, key, limit)
		gid := fmt.Sprintf("citus_0_%d_%d_1", 1<<22+i, 1<<40+i) // of a process that is no more
		execute(t, worker, "begin; set local citus.enable_manual_changes_to_shards = on; update "+shard+" set full_ns = full_ns + token_ns where key = '"+key+"'; prepare transaction '"+gid+"'")
		if committed {
			execute(t, pools[0], "insert into pg_dist_transaction select groupid, '"+gid+"' from pg_dist_node where nodeport = "+strconv.Itoa(int(worker.Config().ConnConfig.Port)))
		}
		impatient := asks(limit, key)
		impatient[0].Impatient = true
		if _, err := s.Take(t.Context(), on(pools[0]), impatient); !errors.Is(err, pglimit.ErrLocked) {
			t.Errorf("committed %v: the key of a prepared part: %v", committed, err)
		}
		execute(t, pools[0], "select recover_prepared_transactions()")
		want := int64(8)
		if committed {
			want = 7
		}
		if d := take(t, pools[0], s, key, limit); !d.Allowed || d.Remaining != want {
			t.Errorf("committed %v: %+v, want %d tokens to be left", committed, d, want)
		}
		must(t, s.Reset(t.Context(), on(pools[0]), "test", key))
	}
}

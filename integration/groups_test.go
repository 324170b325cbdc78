package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func takeGroups(t *testing.T, db database, groups ...[]rate.Request) []pglimit.Decision {
	t.Helper()
	decisions, err := taken(db, func() ([]pglimit.Decision, error) {
		return strategies.TokenBucket{}.Take(t.Context(), on(db), grouped(groups...))
	})
	must(t, err)
	return decisions
}

// groupLoad has callers ask for groups of 2 to 5 of the keys, and some of them for one key alone, once at least. Every
// group is taken whole or not at all, and nobody fails; the report is of the buckets.
func groupLoad(ctx context.Context, t *testing.T, limiters []*pglimit.Limiter, limit pglimit.Limit, callers, keys int, alone func(caller int) bool) (report audit.Report, groups, singles int64) {
	histories := make([]audit.Histories, callers)
	var granted, grantedAlone atomic.Int64
	var work sync.WaitGroup
	for i := range histories {
		limiter := limiters[i%len(limiters)]
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 47))
			for once := false; !once || ctx.Err() == nil; once = true {
				var group []pglimit.Request
				for _, key := range random.Perm(keys)[:2+random.IntN(4)] {
					n := 1 + random.Int64N(3)
					group = append(group, pglimit.Request{Limiter: "test", Key: strconv.Itoa(key), Limit: limit, Tokens: n, Unit: n})
				}
				if alone(i) {
					d, err := limiter.Allow(t.Context(), group[0].Key)
					if err != nil {
						t.Error(err)
						return
					}
					group[0].Tokens, group[0].Unit = 1, 1
					histories[i].Record(group[0].Key, group[0].Tokens, group[0].Unit, d)
					grantedAlone.Add(d.Granted)
					continue
				}
				g, err := limiter.DoAll(t.Context(), group...)
				if err != nil {
					t.Error(err)
					return
				}
				for j, d := range g.Decisions {
					if d.Granted != 0 && d.Granted != group[j].Tokens || (d.Granted > 0) != g.Allowed || !g.Allowed && g.Denied.Allowed {
						t.Errorf("%+v", g)
					}
					if d.Granted > 0 || !d.Allowed {
						histories[i].Record(group[j].Key, group[j].Tokens, group[j].Unit, d)
					}
				}
				if g.Allowed {
					granted.Add(1)
				}
			}
		})
	}
	work.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	return all.Check(nil, limit), granted.Load(), grantedAlone.Load()
}

// Two processes, 64 callers, groups of 2 to 5 of 20 keys, beside requests for single keys, with all
// stages: every bucket is exact, every group is taken whole or not at all, nobody fails.
//
// Not parallel: what contends here is the callers, not other tests.
func TestGroupsAreExactWithAllStages(t *testing.T) {
	for name, leases := range map[string]bool{"": false, "leases": true} {
		t.Run(name, func(t *testing.T) {
			admin := newMigrated(t)
			config := pglimit.Config{Name: "test", Limit: pglimit.Limit{Tokens: 97, Period: 300 * time.Millisecond, Burst: 20}}
			config.Leases.On, config.Leases.TTL = leases, 50*time.Millisecond
			var limiters []*pglimit.Limiter
			var trips leaseTrips
			config.OnRoundTrip = trips.watch
			pools := []*pgxpool.Pool{newPool(t, databaseURL(admin), 8), newPool(t, databaseURL(admin), 8)}
			for _, pool := range pools {
				limiters = append(limiters, newLimiter(t, pool, strategies.TokenBucket{}, config))
			}
			report, granted, _ := groupLoad(soon(t, 400*time.Millisecond), t, limiters, config.Limit, 64, 20, func(caller int) bool { return caller%8 == 0 })
			tolerance := int64(0)
			if longest := trips.longest.Load(); longest > 0 { // see leaseTrips; a lease that takes longer than its TTL is not used
				tolerance = 1 + config.Limit.Tokens*min(longest, int64(config.Leases.TTL))/int64(config.Limit.Period)
			}
			if report.Over.Tokens > tolerance || report.Err != nil || granted == 0 || !leases && !report.OK() { // what others lease is denied
				t.Error(report)
			}
			t.Logf("%d groups were granted, %v", granted, report)
			for _, l := range limiters {
				closeLeasing(t, l)
			}
			if n := finalDeadlocks(t, admin, pools...); n > 0 {
				t.Errorf("%d deadlocks", n)
			}
		})
	}
}

// A session holds the row of one user. Groups of other users, who share the rows of their organisation and of all, go
// on being answered without a failure; the groups of that user get their answer when the session ends. It ends only
// when all others have had ten answers, so whoever waits for it waits until the test gives up.
func TestAHeldRowStallsNoOtherGroup(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"a row": true, "a row in the making": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := newMigrated(t)
			config := pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1_000_000), Timeout: pglimit.NoTimeout}
			var limiters []*pglimit.Limiter
			for range 2 {
				limiters = append(limiters, newLimiter(t, newPool(t, databaseURL(admin), 8), strategies.TokenBucket{}, config))
			}
			group := func(user int) []pglimit.Request {
				return []pglimit.Request{{Key: "user:" + strconv.Itoa(user), Tokens: 1}, {Key: "org:" + strconv.Itoa(user%3), Tokens: 1}, {Key: "all", Tokens: 1}}
			}
			if known {
				take(t, admin, strategies.TokenBucket{}, "user:0", config.Limit)
			}
			holder := begin(t, admin)
			take(t, holder, strategies.TokenBucket{}, "user:0", config.Limit)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var work sync.WaitGroup
			var released atomic.Bool
			var answered [16]atomic.Int64
			for i := range answered {
				work.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), 53))
					for ctx.Err() == nil {
						g, err := limiters[i%2].DoAll(context.WithoutCancel(ctx), group(1+random.IntN(50))...)
						if err != nil || !g.Allowed {
							t.Errorf("%+v, %v", g, err)
							return
						}
						answered[i].Add(1)
					}
				})
			}
			eachHas(t, answered[:], 2) // so that the held group is asked for in calls with others
			for i := range 6 {
				work.Go(func() {
					if g, err := limiters[i%2].DoAll(t.Context(), group(0)...); err != nil || !g.Allowed || !released.Load() {
						t.Errorf("a group of the held user: %+v, %v; released %v", g, err, released.Load())
					}
				})
			}
			eachHas(t, answered[:], 12)
			stop()
			released.Store(true)
			must(t, holder.Rollback(t.Context()))
			work.Wait()
			for _, l := range limiters {
				must(t, l.Close(t.Context()))
			}
		})
	}
}

// A group that is denied writes nothing, also when others of its call are granted: who asks for keys
// that nobody knows, under a limit for all that is used up, does not fill the table. (A call that takes 100 ms is made
// again with all rows locked, for which they must be there: here it may take as long as it does.)
func TestADeniedGroupMakesNoRowBesideGrantedOnes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	timelessly(t, pool)
	limit := hours.WithBurst(1)
	takeGroups(t, pool, asks(limit, "all"))
	decisions := takeGroups(t, pool, asks(limit, "granted"), asks(limit, "all", "unknown"))
	if !decisions[0].Allowed || decisions[1].Allowed {
		t.Errorf("%+v", decisions)
	}
	if keys := query[string](t, pool, "select string_agg(key, ' ' order by key) from pglimit.token_bucket"); keys != "all granted" {
		t.Errorf("rows of %s", keys)
	}
}

// What groups ask of a bucket may be more than a bigint holds, all together: those that find the
// tokens are granted.
func TestGroupsThatAskForMoreThanABigint(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerSecond(pglimit.MaxRate).WithBurst(1 << 62)
	ask := func(key string, tokens int64) []rate.Request {
		return []rate.Request{{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: tokens}}
	}
	for i, d := range takeGroups(t, pool, ask("a", 1<<62), ask("a", 1<<62), ask("b", 1)) {
		if d.Allowed != (i != 1) {
			t.Errorf("group %d: %+v", i+1, d)
		}
	}
}

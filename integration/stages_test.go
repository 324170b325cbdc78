package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// fleet is a number of instances of a service, each with a pool and a limiter of its own,
// whose stages are those of its configuration, and callers that ask them.
type fleet struct {
	config    pglimit.Config
	strategy  strategies.Strategy
	instances int
	callers   int
	keys      int
	costs     []int64                            // drawn at random; none: 1
	next      func(*rand.Rand) []pglimit.Request // what a caller asks for at once, instead of one of the keys
}

// run until ctx ends, each caller once at least, and close the limiters. The report is of all buckets, each under the
// limit by which it was decided. With leases, denials while others have what is left are due, and what the date of a
// lease is off by is not over: see leaseTrips.
func (f fleet) run(ctx context.Context, t *testing.T, pool *pgxpool.Pool) (report audit.Report, stats pglimit.Stats) {
	t.Helper()
	if f.next == nil {
		f.next = func(random *rand.Rand) []pglimit.Request {
			r := pglimit.Request{Key: "key:" + strconv.Itoa(random.IntN(f.keys)), Tokens: 1}
			if len(f.costs) > 0 {
				r.Tokens = f.costs[random.IntN(len(f.costs))]
			}
			return []pglimit.Request{r}
		}
	}
	var trips leaseTrips
	f.config.OnRoundTrip = trips.watch
	limiters := make([]*pglimit.Limiter, f.instances)
	for i := range limiters {
		limiters[i] = newLimiter(t, newPool(t, databaseURL(pool), 16), f.strategy, f.config)
	}
	histories := make([]map[pglimit.Limit]*audit.Histories, f.callers)
	var work sync.WaitGroup
	patience := soon(t, time.Minute)
	leased := func(l *pglimit.Limiter) bool { return l.Stats().Allowed[pglimit.FromLease] > 0 }
	unleased := func() bool { // on a busy machine a lease may take longer
		return f.config.Leases.On && patience.Err() == nil && !slices.ContainsFunc(limiters, leased)
	}
	for i := range f.callers {
		mine := make(map[pglimit.Limit]*audit.Histories)
		histories[i] = mine
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 11))
			for once := false; !once || ctx.Err() == nil || unleased(); once = true {
				requests := f.next(random)
				decisions, err := f.ask(context.WithoutCancel(ctx), limiters[i%f.instances], requests)
				if err != nil {
					t.Error(err)
					return
				}
				for n, d := range decisions {
					if mine[d.Limit] == nil {
						mine[d.Limit] = new(audit.Histories)
					}
					mine[d.Limit].Record(d.Limiter+": "+d.Key, requests[n].Tokens, requests[n].Tokens, d)
				}
			}
		})
	}
	work.Wait()
	for _, l := range limiters {
		closeLeasing(t, l)
		stats = stats.Plus(l.Stats())
	}
	all := make(map[pglimit.Limit]*audit.Histories)
	for _, mine := range histories {
		for limit, of := range mine {
			if all[limit] == nil {
				all[limit] = new(audit.Histories)
			}
			all[limit].Merge(of)
		}
	}
	for limit, of := range all {
		r := of.Check(f.strategy.Rule(), limit)
		if f.config.Leases.On {
			r.NotDue, r.NotDueTotal = nil, 0
			if r.Over.Tokens <= trips.tolerance(limit) {
				r.Over = audit.Over{}
			}
		}
		report.Add(r)
	}
	return report, stats
}

func (f fleet) ask(ctx context.Context, limiter *pglimit.Limiter, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if len(requests) > 1 {
		return limiter.DoEach(ctx, requests...)
	}
	d, err := limiter.Do(ctx, requests[0])
	return []pglimit.Decision{d}, err
}

// closeLeasing closes a Limiter whose leases last for so short a time that a busy machine may not give them back in it.
// They have ended by themselves then, and Close says so.
func closeLeasing(t *testing.T, l *pglimit.Limiter) {
	t.Helper()
	err := l.Close(context.Background())
	late := err != nil && strings.Contains(err.Error(), "leases could not be given back") && strings.Contains(err.Error(), "deadline exceeded")
	if err != nil && !late {
		t.Error(err)
	}
}

func newLimiter(t testing.TB, pool *pgxpool.Pool, strategy strategies.Strategy, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	// A machine that tests may be busier than any server: there, a new connection is no sign of life in time.
	config.Timeout = cmp.Or(config.Timeout, time.Minute)
	config.Breaker.Off = config.Breaker.Off || config.Timeout == pglimit.NoTimeout
	limiter, err := pglimit.New(pool, strategy, config)
	must(t, err)
	return limiter
}

// With every stage on that is on by default, two instances, synchronous commit on: never
// over, and no denial, from memory or not, that was not due when it was made.
//
// Not parallel: what contends here is the callers, not other tests.
func TestExactWithCombiningAndMemory(t *testing.T) {
	mixed := pglimit.Limit{Tokens: 97, Period: 700 * time.Millisecond, Burst: 50}
	for _, test := range []struct {
		name       string
		callers    int
		keys       int
		limit      pglimit.Limit
		costs      []int64
		durability pglimit.Durability
	}{
		{"64 callers, one key, durable", 64, 1, pglimit.PerSecond(50).WithBurst(10), nil, pglimit.Durable},
		{"64 callers, many keys, mixed costs", 64, 40, mixed, []int64{1, 2, 5, 20, 50}, pglimit.Durable},
		{"2,048 callers, one key, mixed costs", 2048, 1, mixed, []int64{1, 2, 5, 20, 50}, pglimit.Durable},
		{"2,048 callers, many keys", 2048, 5000, pglimit.Every(333 * time.Millisecond), nil, pglimit.Relaxed},
	} {
		t.Run(test.name, func(t *testing.T) {
			duration := 300 * time.Millisecond
			if test.callers > 64 { // so many take a while to have asked once
				duration = time.Second
			}
			eachInTurn(t, test.limit, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
				if name := strategy.Name(); name != "token_bucket" && (testing.Short() || test.callers > 64 || name != "upsert" && name != "sliding_window") {
					t.Skip("the suite makes every strategy exact, and stages know a token bucket and another rule")
				}
				before := query[int64](t, pool, deadlocks)
				report, stats := fleet{
					config:   pglimit.Config{Name: "load", Limit: test.limit, Durability: test.durability},
					strategy: strategy, instances: 2, callers: test.callers, keys: test.keys, costs: test.costs,
				}.run(soon(t, duration), t, pool)
				t.Logf("%v; %+v", report, stats)
				if !report.OK() {
					t.Error(report)
				}
				many := decided(stats) > 4*int64(test.callers) // who asks once, on a slow machine, is told by Postgres
				// One call answers several, and one request those who ask for the same, whom chance brings together if
				// there are many keys.
				_, apart := strategy.Rule().(rate.Apart)
				combined := stats.RoundTrips < decided(stats) && (test.keys > 1 || apart || stats.Requests < decided(stats))
				if report.Granted == 0 || !combined || many && stats.Denied[pglimit.FromMemory] == 0 {
					t.Errorf("%d granted, %+v: not every stage had something to do", report.Granted, stats)
				}
				if after := query[int64](t, pool, deadlocks); after != before {
					t.Errorf("%d deadlocks", after-before)
				}
			})
		})
	}
}

// leaseTrips watches the round trips of leases. A grant out of a lease is dated by this process's clock since the lease
// was asked for: later than it is by a round trip at most, in which as many tokens flow back.
type leaseTrips struct{ longest atomic.Int64 }

// watch is for Config.OnRoundTrip.
func (l *leaseTrips) watch(_ context.Context, trip pglimit.RoundTrip) {
	for longest := l.longest.Load(); trip.Operation == "lease" && int64(trip.Duration) > longest; longest = l.longest.Load() {
		l.longest.CompareAndSwap(longest, int64(trip.Duration))
	}
}

// tolerance is how many tokens over the limit that may seem to be.
func (l *leaseTrips) tolerance(limit pglimit.Limit) int64 {
	longest := max(200*time.Millisecond, time.Duration(l.longest.Load()))
	return 1 + int64(longest/limit.Token())
}

// With leases, never over.
func TestNeverOverWithLeases(t *testing.T) {
	const duration = 700 * time.Millisecond
	for _, test := range []struct {
		name    string
		callers int
		limit   pglimit.Limit
		costs   []int64
	}{
		{"64 callers", 64, pglimit.PerSecond(1000).WithBurst(2000), nil},
		{"2,048 callers, mixed costs", 2048, pglimit.PerSecond(500).WithBurst(5000), []int64{1, 2, 5}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := newMigrated(t)
			report, stats := fleet{
				config:   pglimit.Config{Name: "load", Limit: test.limit, Leases: pglimit.Leases{On: true}},
				strategy: strategies.TokenBucket{}, instances: 2, callers: test.callers, keys: 1, costs: test.costs,
			}.run(soon(t, duration), t, pool)
			t.Logf("%v; %+v", report, stats)
			if !report.OK() {
				t.Error(report)
			}
			if stats.Allowed[pglimit.FromLease] == 0 {
				t.Errorf("%+v: nothing was leased", stats)
			}
			if left := query[int64](t, pool, "select coalesce(sum(leased_ns) filter (where until_ns > pglimit.clock_ns()), 0)::bigint from pglimit.token_bucket"); left != 0 {
				t.Errorf("%d ns of the window are set aside after Close", left)
			}
		})
	}
}

// Each key has a limit of its own, under two limiter names, and one call asks for several: none is
// ever over, and no denial is undue.
func TestEachKeyHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	const buckets = 16
	limits := []pglimit.Limit{pglimit.PerSecond(50), pglimit.PerSecond(20).WithBurst(3), pglimit.Every(200 * time.Millisecond).WithBurst(9), pglimit.PerSecond(500).WithBurst(300)}
	next := func(random *rand.Rand) (requests []pglimit.Request) {
		for range 1 + random.IntN(3) {
			bucket := random.IntN(buckets)
			r := pglimit.Request{Key: strconv.Itoa(bucket / 2), Tokens: 1, Limit: limits[bucket%len(limits)]}
			if bucket%2 == 1 {
				r.Limiter = "other"
			}
			requests = append(requests, r)
		}
		return requests
	}
	for _, test := range []struct {
		strategy strategies.Strategy
		leases   bool
	}{{strategies.TokenBucket{}, false}, {strategies.TokenBucket{}, true}, {strategies.Upsert{}, false}} {
		t.Run(fmt.Sprint(test.strategy.Name(), ", leases ", test.leases), func(t *testing.T) {
			config := pglimit.Config{Name: "test", Limit: limits[0], Leases: pglimit.Leases{On: test.leases, TTL: 200 * time.Millisecond}}
			report, stats := fleet{config: config, strategy: test.strategy, instances: 2, callers: 64, next: next}.run(soon(t, time.Second), t, newMigrated(t))
			t.Logf("%v; %+v", report, stats)
			if !report.OK() || report.Granted == 0 || stats.Denied[pglimit.FromMemory] == 0 && stats.Denied.Total() > 100 {
				t.Errorf("%v; %+v", report, stats)
			}
		})
	}
}

// Thousands of callers whose patience ends at random: at the end the bucket has lost what was
// used, and nothing else; what was granted to those who had left has gone to others, or back.
// No goroutine is left.
func TestEveryTokenOfImpatientCallersIsAccountedFor(t *testing.T) {
	const keys = 5
	limit := pglimit.Limit{Tokens: 1, Period: time.Hour, Burst: 5000} // nothing to speak of flows back
	eachInTurn(t, limit, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if testing.Short() && strategy.Name() != "token_bucket" {
			t.Skip("one strategy is enough for -short")
		}
		if inParts(strategy, limit) != limit {
			t.Skip("no tokens are missing from its buckets")
		}
		callers := 3_000
		if strategy.Name() != "token_bucket" {
			callers = 600 // the stages are the same: what is its own is how tokens come back
		}
		for _, leases := range []bool{false, true} {
			if _, able := strategy.(pglimit.Leaser); leases && !able {
				continue
			}
			t.Run("leases "+strconv.FormatBool(leases), func(t *testing.T) {
				pool := newPool(t, databaseURL(pool), 16)
				before := goleak.IgnoreCurrent() // the pool's are not ours
				config := pglimit.Config{Name: "impatient" + strconv.FormatBool(leases), Limit: limit, Leases: pglimit.Leases{On: leases}}
				limiter := newLimiter(t, pool, strategy, config)
				warmUp(t, pool, 16)
				var used, left atomic.Int64
				var work sync.WaitGroup
				leftInTime := func() bool {
					s := limiter.Stats()
					return left.Load() > 0 && (leases || s.GivenBack+s.PassedOnTokens > 0)
				}
				for round := 0; round == 0 || round < 20 && !leftInTime(); round++ { // a machine that is short of time may need more
					for i := range callers {
						work.Go(func() {
							random := rand.New(rand.NewPCG(uint64(i), 17+uint64(round)))
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(150_000))*time.Microsecond)
							defer cancel()
							d, err := limiter.AllowN(ctx, "key:"+strconv.Itoa(random.IntN(keys)), 1+random.Int64N(3))
							switch {
							case err == nil:
								used.Add(d.Granted)
							case errors.Is(err, context.DeadlineExceeded):
								left.Add(1)
							default:
								t.Error(err)
							}
						})
					}
					work.Wait()
				}
				if err := limiter.Close(t.Context()); err != nil {
					t.Error(err)
				}
				var taken int64
				for key := range keys {
					decisions, err := strategy.Take(t.Context(), on(pool), []rate.Request{{Limiter: config.Name, Key: "key:" + strconv.Itoa(key), Limit: limit, Unit: 1}})
					must(t, err)
					taken += limit.Burst - decisions[0].Remaining
				}
				stats := limiter.Stats()
				t.Logf("%d tokens were used, %d are missing from the buckets, %d callers left, %+v", used.Load(), taken, left.Load(), stats)
				// A bucket may miss a fraction of a token: what would have flowed back into it. Lost
				// is what calls took perhaps that failed, as where the machine takes a second for one.
				if missing := taken - used.Load(); missing < 0 || missing > stats.LostTokens+keys {
					t.Errorf("%d tokens are neither used nor in the bucket", missing)
				}
				if !leftInTime() {
					t.Error("nobody left in time to be given back to")
				}
				// The pool's are not ours either: its check, and who reads ahead where a write was slow, until
				// the connection is used again.
				if err := goleak.Find(before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"),
					goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn/internal/bgreader.(*BGReader).bgRead")); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// decided is how many decisions Postgres made.
func decided(s pglimit.Stats) int64 {
	return s.Allowed[pglimit.FromDatabase] + s.Denied[pglimit.FromDatabase]
}

package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// pair is 64 callers of two Limiters, each on a pool of its own, with every stage on.
type pair struct {
	limiters [2]*pglimit.Limiter
	leases   bool
	trips    *leaseTrips
}

func newPair(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, limit pglimit.Limit, leases bool) pair {
	t.Helper()
	c := pair{leases: leases, trips: new(leaseTrips)}
	for i, pool := range twoPools(t, admin, 16) {
		c.limiters[i] = newLimiter(t, pool, strategy, pglimit.Config{
			Name: t.Name(), Limit: limit, Leases: pglimit.Leases{On: leases, TTL: 200 * time.Millisecond}, OnRoundTrip: c.trips.watch,
		})
	}
	return c
}

type histories map[rate.Bucket]*audit.History

func (h histories) of(bucket rate.Bucket) *audit.History {
	if h[bucket] == nil {
		h[bucket] = new(audit.History)
	}
	return h[bucket]
}

// run asks again and again until ctx ends and, if there are to be leases, one was used. Then it closes the
// Limiters.
func (c pair) run(ctx context.Context, t *testing.T, next func(*rand.Rand) []pglimit.Request) (all histories, stats pglimit.Stats) {
	t.Helper()
	var each [64]histories
	var callers sync.WaitGroup
	patience := soon(t, time.Minute)
	unleased := func() bool {
		return c.leases && patience.Err() == nil && c.limiters[0].Stats().Plus(c.limiters[1].Stats()).Allowed[pglimit.FromLease] == 0
	}
	for i := range each {
		each[i] = make(histories)
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 41))
			for once := false; !once || ctx.Err() == nil || unleased(); once = true {
				requests := next(random)
				decisions, err := c.limiters[i%2].DoEach(context.WithoutCancel(ctx), requests...)
				if err != nil {
					t.Error(err)
					return
				}
				for n, d := range decisions {
					each[i].of(rate.Bucket{Limiter: d.Limiter, Key: d.Key}).Add(audit.FromDecision(requests[n].Tokens, requests[n].Tokens, d))
				}
			}
		})
	}
	callers.Wait()
	for _, l := range c.limiters {
		closeLeasing(t, l)
		stats = stats.Plus(l.Stats())
	}
	all = make(histories)
	for i := range each {
		for bucket, history := range each[i] {
			all.of(bucket).Merge(history)
		}
	}
	if c.leases && stats.Allowed[pglimit.FromLease] == 0 {
		t.Errorf("nothing was leased: %+v", stats)
	}
	return all, stats
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

// tolerance of leases.
func (c pair) tolerance(limit pglimit.Limit) int64 {
	if !c.leases {
		return 0
	}
	return c.trips.tolerance(limit)
}

// withAndWithoutLeases is a test of strategies of either way, in SQL and in Go, and again with leases of the one that
// has them.
func withAndWithoutLeases(t *testing.T, test func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, leases bool)) {
	for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.Upsert{}} {
		t.Run(strategy.Name(), func(t *testing.T) { test(t, newMigrated(t), strategy, false) })
	}
	t.Run("with leases", func(t *testing.T) { test(t, newMigrated(t), strategies.TokenBucket{}, true) })
}

// Both plans of the tests below, of which each is the looser in one way; for strategies without
// bursts, the second is the stricter in both.
func twoPlans(strategy strategies.Strategy) [2]pglimit.Limit {
	plans := [2]pglimit.Limit{pglimit.PerSecond(400).WithBurst(20), pglimit.PerSecond(50).WithBurst(200)}
	if strategy.Check(&rate.Request{Limit: plans[0]}) != nil {
		return [2]pglimit.Limit{pglimit.PerSecond(100).WithBurst(1), pglimit.PerSecond(30).WithBurst(1)}
	}
	return plans
}

// Each key has a limit of its own, under two limiter names, and one Take asks for several: none is
// ever over, and no denial is undue.
func TestEachKeyHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	withAndWithoutLeases(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, leases bool) {
		limits := []pglimit.Limit{pglimit.PerSecond(50), pglimit.PerSecond(20).WithBurst(3), pglimit.Every(200 * time.Millisecond).WithBurst(9), pglimit.PerSecond(500).WithBurst(300)}
		if strategy.Check(&rate.Request{Limit: limits[0]}) != nil {
			limits = []pglimit.Limit{pglimit.PerSecond(50).WithBurst(1), pglimit.PerSecond(20).WithBurst(1), pglimit.Every(200 * time.Millisecond)}
		}
		limitOf := func(bucket int) pglimit.Limit { return limits[bucket%len(limits)] }
		c := newPair(t, admin, strategy, limitOf(0), leases)
		const buckets = 16
		all, stats := c.run(soon(t, time.Second), t, func(random *rand.Rand) (requests []pglimit.Request) {
			for range 1 + random.IntN(3) {
				bucket := random.IntN(buckets)
				r := pglimit.Request{Key: strconv.Itoa(bucket / 2), Tokens: 1, Limit: limitOf(bucket)}
				if bucket%2 == 1 {
					r.Limiter = "other " + t.Name()
				}
				requests = append(requests, r)
			}
			return requests
		})
		granted := int64(0)
		for bucket := range buckets {
			name := rate.Bucket{Limiter: t.Name(), Key: strconv.Itoa(bucket / 2)}
			if bucket%2 == 1 {
				name.Limiter = "other " + name.Limiter
			}
			report := all.of(name).Check(strategy.Rule(), limitOf(bucket))
			granted += report.Granted
			if leases && (report.Err != nil || report.Over.Tokens > c.tolerance(limitOf(bucket))) || !leases && !report.OK() {
				t.Errorf("%v, %v: %v", name, limitOf(bucket), report)
			}
		}
		t.Logf("%d granted; %+v", granted, stats)
		if granted == 0 || stats.Denied[pglimit.FromMemory] == 0 && stats.Denied.Total() > 100 || len(all) != buckets {
			t.Errorf("%d granted of %d buckets, %+v", granted, len(all), stats)
		}
	})
}

// The limit is changed again and again under load: never more than the looser one grants.
func TestSetLimitUnderLoad(t *testing.T) {
	t.Parallel()
	withAndWithoutLeases(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, leases bool) {
		plans := twoPlans(strategy)
		c := newPair(t, admin, strategy, plans[0], leases)
		ctx := soon(t, 600*time.Millisecond)
		var setter sync.WaitGroup
		setter.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for i := 1; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := c.limiters[i/2%2].SetLimit(plans[(i+1)/2%2]); err != nil {
					t.Error(err)
				}
			}
		})
		all, stats := c.run(ctx, t, func(*rand.Rand) []pglimit.Request { return []pglimit.Request{{Key: "k", Tokens: 1}} })
		setter.Wait()
		report := all.of(rate.Bucket{Limiter: t.Name(), Key: "k"}).Check(nil, plans[0], plans[1])
		t.Logf("%v; %+v", report, stats)
		if report.Err != nil || report.Over.Tokens > c.tolerance(plans[0]) || report.Granted == 0 {
			t.Error(report)
		}
	})
}

// A raised limit grants at once what it grants more, although this process remembers a denial
// and may have leased the rest; a lowered one denies at once.
func TestARaisedLimitTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	withAndWithoutLeases(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, leases bool) {
		small, large := pglimit.Every(time.Hour).WithBurst(3), pglimit.Every(time.Hour).WithBurst(5)
		if inParts(strategy, small) != small {
			t.Skip("a larger limit of a burst of one is only faster")
		}
		limiter := newLimiter(t, admin, strategy, pglimit.Config{Name: t.Name(), Limit: small, Leases: pglimit.Leases{On: leases}, Memory: pglimit.Memory{TTL: time.Hour}})
		var granted []int64
		var sources []pglimit.Source
		for _, limit := range []pglimit.Limit{small, large, small} {
			must(t, limiter.SetLimit(limit))
			n := int64(0)
			for range 10 {
				d, err := limiter.Allow(t.Context(), "k")
				must(t, err)
				n += d.Granted
				sources = append(sources, d.Source)
			}
			granted = append(granted, n)
		}
		if !slices.Equal(granted, []int64{3, 2, 0}) || sources[9] != pglimit.FromMemory || sources[10] != pglimit.FromDatabase || sources[20] != pglimit.FromDatabase {
			t.Errorf("%d granted, from %v", granted, sources)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

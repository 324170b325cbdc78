package integration

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Two releases of a service with different limits run side by side, each in a process of
// its own, with every stage on. Together they are never granted more than the looser burst
// and the looser rate allow. strategytest has the same of strategies alone.
func TestReleasesWithDifferentLimitsSideBySide(t *testing.T) {
	t.Parallel()
	limits := [2]pglimit.Limit{pglimit.PerSecond(400).WithBurst(20), pglimit.PerSecond(50).WithBurst(200)}
	eachStrategy(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Check(&pglimit.Request{Limit: limits[0]}) != nil {
			limits := [2]pglimit.Limit{pglimit.PerSecond(100).WithBurst(1), pglimit.PerSecond(30).WithBurst(1)}
			runSideBySide(t, admin, strategy, limits, false)
			return
		}
		runSideBySide(t, admin, strategy, limits, false)
		if _, leases := strategy.(pglimit.Leaser); leases {
			t.Run("with leases", func(t *testing.T) { runSideBySide(t, admin, strategy, limits, true) })
		}
	})
}

func runSideBySide(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy, limits [2]pglimit.Limit, leases bool) {
	t.Helper()
	var trips leaseTrips
	var limiters [2]*pglimit.Limiter
	for i, pool := range twoPools(t, admin, 16) {
		limiters[i] = newLimiter(t, pool, strategy, pglimit.Config{
			Name: "side by side " + t.Name(), Limit: limits[i], Leases: pglimit.Leases{On: leases, TTL: 200 * time.Millisecond}, OnRoundTrip: trips.watch,
		})
	}
	ctx, patience := soon(t, 500*time.Millisecond), soon(t, time.Minute)
	var leased atomic.Bool
	leased.Store(!leases)
	var histories [32]audit.History
	var callers sync.WaitGroup
	for i := range histories {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 31))
			for once := false; !once || ctx.Err() == nil || !leased.Load() && patience.Err() == nil; once = true { // longer on a busy machine
				n := min(1+random.Int64N(3), limits[i%2].Burst)
				d, err := limiters[i%2].AllowN(t.Context(), "k", n)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Granted > 0 && d.Source == pglimit.FromLease {
					leased.Store(true)
				}
				histories[i].Add(audit.FromDecision(pglimit.Request{Tokens: n, Unit: n}, d))
			}
		})
	}
	callers.Wait()
	var stats [2]pglimit.Stats
	for i, l := range limiters {
		closeLeasing(t, l)
		stats[i] = l.Stats()
	}
	var all audit.History
	for i := range histories {
		all.Merge(&histories[i])
	}
	report := all.Check(limits[0], limits[1])
	t.Logf("%v; %+v; %+v", report, stats[0], stats[1])
	var tolerance int64
	if leases {
		tolerance = trips.tolerance(limits[0])
	}
	if report.Err != nil || report.Over.Tokens > tolerance || report.Granted == 0 {
		t.Error(report)
	}
	if !leased.Load() {
		t.Error("nothing was leased")
	}
}

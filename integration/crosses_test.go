package integration

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Of all grants of a bucket that does not refill, by two processes, combined or not and in groups, one crosses
// each share.
func TestOneGrantOfAllProcessesCrosses(t *testing.T) {
	t.Parallel()
	shares := [...]float64{0.001, 0.25, 0.5, 0.8, 0.999, 1}
	for name, config := range map[string]pglimit.Config{
		"combined": {Limit: pglimit.Every(1000 * time.Hour).WithBurst(1000)},
		"a window": {Limit: pglimit.Per(1000, 24*time.Hour).Fixed().In(zoneByDay(t))},
		"alone":    {Limit: pglimit.Every(1000 * time.Hour).WithBurst(1000), Combine: pglimit.Combine{Off: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			config.Name = "api"
			var crossed [len(shares)]atomic.Int64
			var granted atomic.Int64
			var limiters []*pglimit.Limiter
			for _, own := range twoPools(t, pool, 8) {
				limiters = append(limiters, newLimiter(t, own, strategies.TokenBucket{}, config))
			}
			var callers sync.WaitGroup
			for i := range 64 {
				callers.Go(func() {
					random, l := rand.New(rand.NewPCG(uint64(i), 7)), limiters[i%2]
					for {
						r := pglimit.Request{Key: "k", Tokens: 1 + random.Int64N(3)}
						var d pglimit.Decision
						var err error
						if random.IntN(4) == 0 {
							var group pglimit.Group
							group, err = l.DoAll(t.Context(), r, pglimit.Request{Key: fmt.Sprint("other", i), Tokens: 1})
							if err == nil {
								d = group.Decisions[0]
							}
						} else {
							d, err = l.Do(t.Context(), r)
						}
						if err != nil {
							t.Error(err)
							return
						}
						granted.Add(d.Granted)
						for k, share := range shares {
							if d.Crosses(share) {
								crossed[k].Add(1)
							}
						}
						if d.Granted == 0 && r.Tokens == 1 && d.Remaining == 0 {
							return
						}
					}
				})
			}
			callers.Wait()
			if granted.Load() != config.Limit.Burst {
				t.Errorf("%d were granted", granted.Load())
			}
			for k, share := range shares {
				if n := crossed[k].Load(); n != 1 {
					t.Errorf("%v was crossed %d times", share, n)
				}
			}
		})
	}
}

// zoneByDay is a time zone where the day ends in hours.
func zoneByDay(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"UTC", "Asia/Tokyo"} {
		zone, err := time.LoadLocation(name)
		must(t, err)
		if time.Now().In(zone).Hour() < 20 {
			return name
		}
	}
	panic("they are nine hours apart")
}

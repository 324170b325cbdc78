package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// BenchmarkDoAll compares groups of three buckets with single ones, in turns on one server: the
// ratio of the times per decision of DoAll and Allow, for one caller and for 64. "hot": all
// callers ask for the same buckets. "users": each has one of their own, in groups also one of ten
// organisations' and the one of all.
//
//	go test ./integration -run xxx -bench DoAll -benchtime 5x
func BenchmarkDoAll(b *testing.B) {
	pool := newMigrated(b)
	limiter := newLimiter(b, pool, strategies.TokenBucket{}, pglimit.Config{Name: "bench", Limit: pglimit.PerSecond(1_000_000_000)})
	groups := make([][]pglimit.Request, 64) // of each user
	for user := range groups {
		groups[user] = []pglimit.Request{{Key: fmt.Sprint("user:", user), Tokens: 1}, {Key: fmt.Sprint("org:", user%10), Tokens: 1}, {Key: "all", Tokens: 1}}
	}
	ask := func(user int, all bool) (err error) {
		if all {
			_, err = limiter.DoAll(b.Context(), groups[user]...)
		} else {
			_, err = limiter.Allow(b.Context(), groups[user][0].Key)
		}
		return err
	}
	// perSecond is how many decisions the callers get in a while.
	perSecond := func(b *testing.B, callers, users int, all bool) float64 {
		const while = 300 * time.Millisecond
		done := make([]int, callers)
		var work sync.WaitGroup
		began := time.Now()
		for i := range callers {
			work.Go(func() {
				for time.Since(began) < while {
					if err := ask(i%users, all); err != nil {
						b.Error(err)
						return
					}
					done[i]++
				}
			})
		}
		work.Wait()
		total := 0
		for _, n := range done {
			total += n
		}
		return float64(total) / time.Since(began).Seconds()
	}
	for _, load := range []struct {
		name           string
		callers, users int
	}{{"one caller", 1, 1}, {"64 callers, hot", 64, 1}, {"64 callers, users", 64, 64}} {
		b.Run(load.name, func(b *testing.B) {
			var single, all []float64
			for b.Loop() {
				single = append(single, perSecond(b, load.callers, load.users, false))
				all = append(all, perSecond(b, load.callers, load.users, true))
			}
			b.ReportMetric(median(single), "Allow/s")
			b.ReportMetric(median(all), "DoAll/s")
			b.ReportMetric(median(single)/median(all), "times")
			b.ReportMetric(0, "ns/op")
		})
	}
}

package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// What a permit costs one caller, beside a take: they take turns, so both meet the same machine.
func BenchmarkPermit(b *testing.B) {
	pool := newMigrated(b)
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "bench", Limit: pglimit.PerSecond(1e6)})
	must(b, err)
	s, err := semaphore.New(pool, semaphore.Config{Name: "bench", Places: 8})
	must(b, err)
	var take, permit time.Duration
	for b.Loop() {
		began := time.Now()
		d, err := limiter.Allow(b.Context(), "k")
		took := time.Now()
		if err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		p, err := s.Acquire(b.Context(), "k")
		must(b, err)
		must(b, p.Release(b.Context()))
		take += took.Sub(began)
		permit += time.Since(took)
	}
	b.ReportMetric(float64(take.Microseconds())/float64(b.N), "µs/take")
	b.ReportMetric(float64(permit.Microseconds())/float64(b.N), "µs/permit")
	b.ReportMetric(float64(permit)/float64(take), "permit/take")
	must(b, limiter.Close(b.Context()))
	must(b, s.Close(b.Context()))
}

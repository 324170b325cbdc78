package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// What a permit costs one caller, beside a take, and one whose number of places is one of 10,000 rules of the table: they
// take turns, so all meet the same machine.
func BenchmarkPermit(b *testing.B) {
	pool := newMigrated(b)
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "bench", Limit: pglimit.PerSecond(1e6)})
	must(b, err)
	s, err := semaphore.New(pool, semaphore.Config{Name: "bench", Places: 8})
	must(b, err)
	table, err := semaphore.New(pool, semaphore.Config{Name: "table", FromTable: true})
	must(b, err)
	execute(b, pool, `insert into pglimit.limits (limiter, limit_text, key, prefix, action, note)
		select 'table', '8', case when n % 2 = 0 then 'a' || n end, case when n % 2 = 1 then 'b' || n end, 'places', 'bench' from generate_series(1, 9999) n
		union all select 'table', '8', null, null, 'places', 'bench'`)
	execute(b, pool, "analyze pglimit.limits")
	var take, permit, fromTable time.Duration
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
		released := time.Now()
		p, err = table.Acquire(b.Context(), "tenant:42")
		must(b, err)
		must(b, p.Release(b.Context()))
		permit += released.Sub(took)
		fromTable += time.Since(released)
	}
	b.ReportMetric(float64(take.Microseconds())/float64(b.N), "µs/take")
	b.ReportMetric(float64(permit.Microseconds())/float64(b.N), "µs/permit")
	b.ReportMetric(float64(permit)/float64(take), "permit/take")
	b.ReportMetric(float64(fromTable)/float64(permit), "table/permit")
	must(b, limiter.Close(b.Context()))
	must(b, s.Close(b.Context()))
	must(b, table.Close(b.Context()))
}

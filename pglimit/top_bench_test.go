package pglimit_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// BenchmarkTop is what Config.Top adds to a denial that is remembered. The rounds take turns, and the fastest count, so
// that it says the same on a busy machine.
//
//	go test ./pglimit -run xxx -bench Top -benchtime 1000x
func BenchmarkTop(b *testing.B) {
	nobody, err := pgxpool.New(b.Context(), "postgres://127.0.0.1:1")
	if err != nil {
		b.Fatal(err)
	}
	denied := func(top *pglimit.Top) (once func()) {
		strategy := &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour})}
		limiter := remembering(b, strategy, func(c *pglimit.Config) {
			c.Memory.TTL, c.Combine.Off, c.Timeout, c.Top = time.Hour, false, time.Second, top
		})
		ctx := b.Context()
		once = func() {
			if d, _ := limiter.Allow(ctx, "user:1"); d.Allowed {
				b.Error("allowed")
			}
		}
		once()
		return once
	}
	ways := [2]func(){denied(nil), denied(pglimit.TopFrom(nobody, pglimit.TopConfig{}))}
	var best [len(ways)]time.Duration
	for b.Loop() {
		for i, once := range ways {
			began := time.Now()
			for range 10000 {
				once()
			}
			if took := time.Since(began); best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best[0])/10000, "ns-without")
	b.ReportMetric(float64(best[1])/10000, "ns-with")
	b.ReportMetric(float64(best[1])/float64(best[0]), "ratio")
	for i, once := range ways {
		b.ReportMetric(testing.AllocsPerRun(10000, once), [len(ways)]string{"allocs-without", "allocs-with"}[i])
	}
}

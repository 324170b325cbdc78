package pglimit_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// BenchmarkRules is what 10,000 rules for keys add to a denial that is remembered, where none of them is for the key
// and where one is, and how much memory they take. The rounds take turns, and the fastest count, so that it says the
// same on a busy machine.
//
//	go test ./pglimit -run xxx -bench Rules -benchtime 1000x
func BenchmarkRules(b *testing.B) {
	heap := func() float64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return float64(stats.HeapAlloc)
	}
	before := heap()
	rules := make([]pglimit.LimitRule, 10_000)
	for i := range rules {
		rules[i] = pglimit.LimitRule{ID: int64(i), Limiter: "test", Key: "tenant:" + strconv.Itoa(i), Limit: pglimit.PerSecond(int64(1 + i%100)), Note: "ticket " + strconv.Itoa(i)}
	}
	limits := pglimit.FixedLimits(rules...)
	size := (heap() - before) / 1e6

	denied := func(limits *pglimit.Limits, key string) (once func()) {
		limiter := remembering(b, &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour})}, func(c *pglimit.Config) {
			c.Memory.TTL, c.Combine.Off, c.Timeout, c.Limits = time.Hour, false, time.Second, limits
		})
		ctx := b.Context()
		once = func() {
			if d, _ := limiter.Allow(ctx, key); d.Allowed {
				b.Error("allowed")
			}
		}
		once()
		return once
	}
	ways := [3]func(){denied(nil, "user:1"), denied(limits, "user:1"), denied(limits, "tenant:77")}
	var best [len(ways)]time.Duration
	for b.Loop() {
		for i, once := range ways {
			began := time.Now()
			for range 1000 {
				once()
			}
			if took := time.Since(began) / 1000; best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best[0]), "ns-none")
	b.ReportMetric(float64(best[1]), "ns-others")
	b.ReportMetric(float64(best[2]), "ns-own")
	b.ReportMetric(size, "MB")
	runtime.KeepAlive(limits)
}

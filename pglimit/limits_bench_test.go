package pglimit_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// BenchmarkRules is a denial that is known, without rules, with 10,000 for other keys, and with one of
// them for the key; and how much memory the rules take.
//
//	go test ./pglimit -run xxx -bench Rules -count 6
func BenchmarkRules(b *testing.B) {
	rules := make([]pglimit.LimitRule, 10_000)
	for i := range rules {
		rules[i] = pglimit.LimitRule{ID: int64(i), Limiter: "test", Key: "tenant:" + strconv.Itoa(i), Limit: pglimit.PerSecond(int64(1 + i%100)), Note: "ticket " + strconv.Itoa(i)}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	limits := pglimit.FixedLimits(rules...)
	rules = nil
	runtime.GC()
	runtime.ReadMemStats(&after)
	for _, of := range []struct {
		name   string
		limits *pglimit.Limits
		key    string
	}{{"none", nil, "user:1"}, {"of other keys", limits, "user:1"}, {"of the key", limits, "tenant:77"}} {
		b.Run(of.name, func(b *testing.B) {
			limiter := remembering(b, &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour})}, func(c *pglimit.Config) {
				c.Memory.TTL, c.Combine.Off, c.Timeout, c.Limits = time.Hour, false, time.Second, of.limits
			})
			ctx := b.Context()
			_, _ = limiter.Allow(ctx, of.key)
			b.ReportAllocs()
			for b.Loop() {
				if d, _ := limiter.Allow(ctx, of.key); d.Allowed {
					b.Error("allowed")
				}
			}
			if of.limits != nil {
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
			}
		})
	}
	_ = fmt.Sprint(limits.Status())
}

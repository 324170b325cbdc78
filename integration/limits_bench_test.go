package integration

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// BenchmarkLimitsChange is the time from the commit of a change to the moment from which all of three
// services, with 16 callers each, decide by it.
//
//	go test ./integration -run xxx -bench LimitsChange -benchtime 30x
func BenchmarkLimitsChange(b *testing.B) {
	pool := newMigrated(b)
	execute(b, pool, "select pglimit.set_limit('api', '100/1s', note => 'first')")
	var all []*pglimit.Limits
	var work sync.WaitGroup
	for range 3 {
		limits := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})
		limiter := newLimiter(b, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours.WithBurst(1), Limits: limits})
		all = append(all, limits)
		for range 16 {
			work.Go(func() {
				for b.Context().Err() == nil {
					_, _ = limiter.Allow(b.Context(), "k")
					<-time.After(time.Millisecond)
				}
			})
		}
	}
	var took []float64
	for b.Loop() {
		execute(b, pool, "select pglimit.set_limit('api', '100/1s', note => 'again')")
		version, began := query[int64](b, pool, "select max(id) from pglimit.limits_history"), time.Now()
		for _, limits := range all {
			for limits.Status().Version < version {
				<-time.After(time.Millisecond)
			}
		}
		took = append(took, time.Since(began).Seconds()*1000)
	}
	slices.Sort(took)
	b.ReportMetric(median(took), "ms-p50")
	b.ReportMetric(took[len(took)*99/100], "ms-p99")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkLimitsPoll is what one look at an unchanged table of 10,000 rules costs, and one that reads all of it.
func BenchmarkLimitsPoll(b *testing.B) {
	pool := newMigrated(b)
	execute(b, pool, "insert into pglimit.limits (limiter, key, limit_text, note) select 'api', 'tenant:' || i, '100/1s', 'plan' from generate_series(1, 10000) i")
	stamp := query[string](b, pool, "select pglimit.limits_since('')::json->>'stamp'")
	for name, known := range map[string]string{"unchanged": stamp, "all": ""} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_ = query[*string](b, pool, "select pglimit.limits_since($1)", known)
			}
		})
	}
}

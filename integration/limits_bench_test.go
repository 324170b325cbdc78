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

// BenchmarkLimitsRoundTrip is a grant without rules, and with 10,000. They take turns, and the fastest count.
//
//	go test ./integration -run xxx -bench LimitsRoundTrip -benchtime 3000x
func BenchmarkLimitsRoundTrip(b *testing.B) {
	pool := newMigrated(b)
	execute(b, pool, "insert into pglimit.limits (limiter, key, limit_text, note) select 'api', 'tenant:' || i, '1000000/s', 'plan' from generate_series(1, 10000) i")
	var best [2]time.Duration
	var limiters [2]*pglimit.Limiter
	for i, limits := range []*pglimit.Limits{nil, pglimit.LimitsFrom(pool, pglimit.LimitsConfig{})} {
		limiters[i] = newLimiter(b, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1_000_000), Limits: limits})
		_, err := limiters[i].Allow(b.Context(), "tenant:77")
		must(b, err)
	}
	for b.Loop() {
		for i, limiter := range limiters {
			began := time.Now()
			d, err := limiter.Allow(b.Context(), "tenant:77")
			if took := time.Since(began); best[i] == 0 || took < best[i] {
				best[i] = took
			}
			if err != nil || d.Source != pglimit.FromDatabase || (d.Rule == nil) != (i == 0) {
				b.Fatalf("%+v, %v", d, err)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best[0])/1000, "µs-none")
	b.ReportMetric(float64(best[1])/1000, "µs-rules")
}

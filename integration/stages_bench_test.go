package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// BenchmarkStage shows what each stage makes of the same load: 512 callers of one key or
// of 100,000, all granted or all denied. Read the ratios of one run: ns/op is the time per
// decision. For figures, name a server with PGLIMIT_TEST_DATABASE_URL; what the tests start
// by themselves does not flush to disk.
//
//	go test ./integration -run xxx -bench Stage
func BenchmarkStage(b *testing.B) {
	plenty := pglimit.PerSecond(1_000_000_000)
	for _, load := range []struct {
		name  string
		limit pglimit.Limit
		keys  int
	}{
		{"one key, granted", plenty, 1},
		{"many keys, granted", plenty, 100_000},
		{"one key, denied", pglimit.PerHour(1), 1},
	} {
		for _, stage := range []struct {
			name   string
			change func(*pglimit.Config)
		}{
			{"none", func(c *pglimit.Config) { c.Combine.Off, c.Memory.Off = true, true }},
			{"none, durable", func(c *pglimit.Config) { c.Combine.Off, c.Memory.Off, c.Durability = true, true, pglimit.Durable }},
			{"combining", func(c *pglimit.Config) { c.Memory.Off = true }},
			{"combining, durable", func(c *pglimit.Config) { c.Memory.Off, c.Durability = true, pglimit.Durable }},
			{"combining and memory", func(*pglimit.Config) {}},
			{"and leases", func(c *pglimit.Config) { c.Leases.On = true }},
		} {
			b.Run(load.name+"/"+stage.name, func(b *testing.B) {
				pool := newMigrated(b)
				config := pglimit.Config{Name: "bench", Limit: load.limit}
				stage.change(&config)
				limiter := newLimiter(b, pool, strategies.TokenBucket{}, config)
				keys := make([]string, load.keys)
				for i := range keys {
					keys[i] = "user:" + strconv.Itoa(i)
				}
				b.SetParallelism(256) // callers per core
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
					defer cancel()
					random := rand.New(rand.NewPCG(rand.Uint64(), 1))
					for pb.Next() {
						if _, err := limiter.Allow(ctx, keys[random.IntN(len(keys))]); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.StopTimer()
				stats := limiter.Stats()
				if stats.RoundTrips > 0 {
					b.ReportMetric(float64(decided(stats))/float64(stats.RoundTrips), "decisions/trip")
				}
				if err := limiter.Close(b.Context()); err != nil {
					b.Error(err)
				}
			})
		}
	}
}

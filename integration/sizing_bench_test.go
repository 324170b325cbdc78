package integration

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// BenchmarkSizing measures the figures of docs/operations.md: what a key, a grant and a Limiter
// cost.
//
//	go test ./integration -run xxx -bench Sizing -benchtime 1x
func BenchmarkSizing(b *testing.B) {
	const keys = 5_000
	names := make([]string, keys)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(100_000+i)
	}
	b.Run("a key", func(b *testing.B) {
		for _, strategy := range strategies.All() {
			b.Run(strategy.Name(), func(b *testing.B) {
				for b.Loop() {
					pool := newMigrated(b)
					limiter := sized(b, pool, strategy, pglimit.Config{Limit: pglimit.Every(time.Hour)})
					takeFromAll(b, limiter, names)
					table := strategy.Name()
					b.ReportMetric(query[float64](b, pool, fmt.Sprintf("select pg_table_size('pglimit.%s')::float8 / %d", table, keys)), "B-heap/key")
					b.ReportMetric(query[float64](b, pool, fmt.Sprintf("select pg_indexes_size('pglimit.%s')::float8 / %d", table, keys)), "B-index/key")
				}
			})
		}
	})
	b.Run("WAL of a grant", func(b *testing.B) {
		for name, change := range map[string]func(*pglimit.Config){
			"one call per decision":          func(c *pglimit.Config) { c.Combine.Off = true },
			"one call per decision, durable": func(c *pglimit.Config) { c.Combine.Off, c.Durability = true, pglimit.Durable },
			"combined":                       func(*pglimit.Config) {},
		} {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					pool := newMigrated(b)
					config := pglimit.Config{Limit: pglimit.PerSecond(1000)}
					change(&config)
					limiter := sized(b, pool, strategies.TokenBucket{}, config)
					takeFromAll(b, limiter, names)
					for _, part := range []struct {
						unit string
						keys []string
					}{{"B/first-grant", nil}, {"B/grant", names}} {
						keys := part.keys
						if keys == nil {
							keys = make([]string, len(names))
							for i := range keys {
								keys[i] = "new:" + names[i]
							}
						}
						before, trips := query[string](b, pool, "select pg_current_wal_insert_lsn()::text"), limiter.Stats().RoundTrips
						takeFromAll(b, limiter, keys)
						written := query[float64](b, pool, "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::float8", before)
						b.ReportMetric(written/float64(len(keys)), part.unit)
						b.ReportMetric(float64(len(keys))/float64(limiter.Stats().RoundTrips-trips), "grants/trip")
					}
				}
			})
		}
	})
	b.Run("memory of a Limiter", func(b *testing.B) {
		for b.Loop() {
			pool := newMigrated(b)
			take := func(config pglimit.Config, keys int) uint64 {
				before := heap()
				limiter := sized(b, pool, strategies.TokenBucket{}, config)
				takeFromAll(b, limiter, names[:keys])
				takeFromAll(b, limiter, names[:keys])
				after := heap()
				runtime.KeepAlive(limiter)
				return after - before
			}
			hour := pglimit.Config{Limit: pglimit.Every(time.Hour), Memory: pglimit.Memory{TTL: time.Hour}}
			b.ReportMetric(float64(take(hour, 1)), "B/new")
			b.ReportMetric(float64(take(hour, keys))/keys, "B/denied-key")
		}
	})
	b.Run("connections", func(b *testing.B) {
		for b.Loop() {
			pool := newMigrated(b)
			limiter := sized(b, pool, strategies.TokenBucket{}, pglimit.Config{Limit: pglimit.PerSecond(1000)})
			takeFromAll(b, limiter, names)
			b.ReportMetric(float64(pool.Stat().TotalConns()), "conns")
			b.ReportMetric(keys/float64(limiter.Stats().RoundTrips), "grants/trip")
			apart := newMigrated(b)
			limiter = sized(b, apart, strategies.TokenBucket{}, pglimit.Config{Limit: pglimit.PerSecond(1000), Combine: pglimit.Combine{Off: true}})
			takeFromAll(b, limiter, names)
			b.ReportMetric(float64(apart.Stat().TotalConns()), "conns-apart")
		}
	})
}

func sized(b *testing.B, pool *pgxpool.Pool, strategy pglimit.Strategy, config pglimit.Config) *pglimit.Limiter {
	b.Helper()
	config.Name = "api"
	limiter, err := pglimit.New(pool, strategy, config)
	must(b, err)
	b.Cleanup(func() { must(b, limiter.Close(context.Background())) })
	return limiter
}

// takeFromAll takes a token of each key, with 64 callers.
func takeFromAll(b *testing.B, limiter *pglimit.Limiter, keys []string) {
	b.Helper()
	work := make(chan string)
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for key := range work {
				if _, err := limiter.Allow(b.Context(), key); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for _, key := range keys {
		work <- key
	}
	close(work)
	callers.Wait()
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

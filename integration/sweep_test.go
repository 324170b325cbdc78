package integration

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

const expired = 30_000

// fillWithExpired adds rows of buckets that have long been full.
func fillWithExpired(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	_, err := pool.Exec(tb.Context(), `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
		select 'gone:' || i, 'load', 1000, 1000, 1 from generate_series(1, $1::int) i`, expired)
	if err != nil {
		tb.Fatal(err)
	}
}

func sweepNow(tb testing.TB, pool *pgxpool.Pool) cleanup.Report {
	tb.Helper()
	cleaner, err := cleanup.New(pool, []strategies.Strategy{strategies.TokenBucket{}}, cleanup.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	report, err := cleaner.RunOnce(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return report
}

// Many expired rows are swept while 64 callers take: all are gone, no decision
// is wrong, and the memory of the process stays flat. Not parallel: memory is the
// process's.
func TestManyExpiredRowsAreSwept(t *testing.T) {
	if testing.Short() {
		t.Skip("many rows")
	}
	pool := newMigrated(t)
	fillWithExpired(t, pool)
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse
	}
	before := heap()
	ctx, stop := context.WithCancel(t.Context())
	limit := pglimit.PerSecond(5).WithBurst(3)
	done := make(chan outcome)
	go func() {
		done <- load{strategy: strategies.TokenBucket{}, pools: twoPools(t, pool, 32), limit: limit, callers: 64, keys: 100}.run(ctx, t)
	}()
	report := sweepNow(t, pool)
	stop()
	if got := <-done; !got.report.OK() || got.granted == 0 {
		t.Error(got.report)
	}
	if grown := int64(heap()) - int64(before); grown > 32<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("%+v", report)
	if left := query[int64](t, pool, "select count(*) from pglimit.token_bucket where key like 'gone:%'"); left > 0 {
		t.Errorf("%d of %d rows are left", left, expired)
	}
}

// What a sweep of many rows costs the callers: the ratio of their p99 latency
// with it to that without it. Medians over the iterations are reported; a server
// whose fsync is on (PGLIMIT_TEST_DATABASE_URL) tells more than one for tests.
func BenchmarkTakesBesideASweep(b *testing.B) {
	pool := newMigrated(b)
	pools := []*pgxpool.Pool{newPool(b, databaseURL(pool), 32), newPool(b, databaseURL(pool), 32)}
	callers := load{
		strategy: strategies.TokenBucket{}, pools: pools, limit: pglimit.PerSecond(1000), callers: 64, keys: 1000, unaudited: true,
	}
	var withouts, withs, ratios, sweeps []float64
	for b.Loop() {
		fillWithExpired(b, pool)
		// What the inserts leave to do would otherwise slow the callers without a sweep.
		for _, settle := range []string{"vacuum analyze pglimit.token_bucket", "checkpoint"} {
			if _, err := pool.Exec(b.Context(), settle); err != nil {
				b.Fatal(err)
			}
		}
		without := float64(callers.run(soon(b, 5*time.Second), b).latency.ValueAtQuantile(99))
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan outcome)
		go func() { done <- callers.run(ctx, b) }()
		start := time.Now()
		sweepNow(b, pool)
		sweeps = append(sweeps, time.Since(start).Seconds())
		cancel()
		with := float64((<-done).latency.ValueAtQuantile(99))
		withouts, withs, ratios = append(withouts, without), append(withs, with), append(ratios, with/without)
	}
	b.ReportMetric(median(withouts), "p99-without-us")
	b.ReportMetric(median(withs), "p99-with-us")
	b.ReportMetric(median(ratios), "p99-ratio")
	b.ReportMetric(median(sweeps), "sweep-s")
	b.Logf("ratios %.2f", ratios)
}

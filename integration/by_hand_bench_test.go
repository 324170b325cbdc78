package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// BenchmarkByHand compares one caller of a Limiter with one who runs the upsert that people write
// by hand, in turn on one database: the ratio of the median times of a decision. Both use pgx with
// the same context, which can be cancelled; neither commit waits for the disk; each asks for 100,000
// keys, whose rows are there, at random. "denied": the Limiter asks Postgres, without a memory of
// denials. "unnamed": without prepared statements, as through some connection poolers. "busy": a process of the lowest
// priority runs on each processor, so that none sleeps: waking one up takes 55 µs, and hides everything else.
//
//	go test ./integration -run xxx -bench ByHand -benchtime 10x
func BenchmarkByHand(b *testing.B) {
	for _, load := range []struct {
		name    string
		limit   pglimit.Limit
		unnamed bool
	}{
		{"granted", pglimit.PerSecond(1_000_000), false},
		{"denied", pglimit.PerHour(1), false},
		{"granted, unnamed", pglimit.PerSecond(1_000_000), true},
		{"denied, unnamed", pglimit.PerHour(1), true},
		{"granted, busy", pglimit.PerSecond(1_000_000), false},
		{"denied, busy", pglimit.PerHour(1), false},
	} {
		b.Run(load.name, func(b *testing.B) {
			if strings.HasSuffix(load.name, "busy") {
				keepAwake(b)
			}
			url := databaseURL(newMigrated(b))
			names := userNames()
			limiter := lonely(b, relaxedPool(b, url, load.unnamed), load.limit)
			takeFromAll(b, limiter, names)
			byHandPool := relaxedPool(b, url, load.unnamed)
			byHand := upsertByHand(b, byHandPool)
			settle(b, byHandPool)
			us, them := inTurn(b, names, allowing(b, limiter, load.limit), byHand)
			report(b, us, "us-p50", them, "us-by-hand-p50", "x-by-hand-p50")
		})
	}
}

// keepAwake runs a process of the lowest priority on each processor until the benchmark ends.
func keepAwake(b *testing.B) {
	b.Helper()
	for range runtime.NumCPU() {
		spins := exec.CommandContext(b.Context(), "nice", "-n", "19", "sh", "-c", "while :; do :; done")
		must(b, spins.Start())
		b.Cleanup(func() {
			_ = spins.Process.Kill()
			_ = spins.Wait()
		})
	}
}

// BenchmarkUnnamed compares one caller without prepared statements with one who has them.
//
//	go test ./integration -run xxx -bench Unnamed -benchtime 10x
func BenchmarkUnnamed(b *testing.B) {
	for name, limit := range map[string]pglimit.Limit{"granted": pglimit.PerSecond(1_000_000), "denied": pglimit.PerHour(1)} {
		b.Run(name, func(b *testing.B) {
			url := databaseURL(newMigrated(b))
			names := userNames()
			prepared, unnamed := lonely(b, relaxedPool(b, url, false), limit), lonely(b, relaxedPool(b, url, true), limit)
			takeFromAll(b, prepared, names)
			settle(b, newPool(b, url, 1))
			without, with := inTurn(b, names, allowing(b, unnamed, limit), allowing(b, prepared, limit))
			report(b, without, "us-unnamed-p50", with, "us-prepared-p50", "x-prepared-p50")
		})
	}
}

func userNames() []string {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprint("user:", i)
	}
	return names
}

// relaxedPool has connections whose commits do not wait for the disk.
func relaxedPool(b *testing.B, url string, unnamed bool) *pgxpool.Pool {
	b.Helper()
	url += "&synchronous_commit=off"
	if unnamed {
		url += "&default_query_exec_mode=exec"
	}
	return newPool(b, url, 16)
}

// settle brings new tables to where they are most of the time: with statistics, and with their
// pages behind a checkpoint, so that what runs first does not pay for it.
func settle(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	execute(b, pool, "vacuum analyze")
	execute(b, pool, "checkpoint")
}

// lonely is a limiter as it comes, but without a memory of denials.
func lonely(b *testing.B, pool *pgxpool.Pool, limit pglimit.Limit) *pglimit.Limiter {
	b.Helper()
	config := pglimit.Config{Limit: limit, Memory: pglimit.Memory{Off: true}}
	return sized(b, pool, strategies.TokenBucket{}, config)
}

// allowing asks the limiter, for a key whose token is taken already: it must say what the limit
// says of that.
func allowing(b *testing.B, limiter *pglimit.Limiter, limit pglimit.Limit) func(context.Context, string) {
	want := limit.Burst > 1
	return func(ctx context.Context, key string) {
		if d, err := limiter.Allow(ctx, key); err != nil || d.Allowed != want {
			b.Fatal(d, err)
		}
	}
}

// upsertByHand counts in windows of a second, in one statement, with a row for each name.
func upsertByHand(b *testing.B, pool *pgxpool.Pool) func(context.Context, string) {
	b.Helper()
	execute(b, pool, `create table by_hand (key text primary key, hits bigint not null, window_ends timestamptz not null) with (fillfactor = 50)`)
	execute(b, pool, `insert into by_hand select 'user:' || i, 1, now() from generate_series(0, 99999) i`)
	const statement = `insert into by_hand as t (key, hits, window_ends)
		values ($1, 1, now() + interval '1 second')
		on conflict (key) do update set
			hits = case when t.window_ends <= now() then 1 else t.hits + 1 end,
			window_ends = case when t.window_ends <= now() then excluded.window_ends else t.window_ends end
		returning hits`
	return func(ctx context.Context, key string) {
		var hits int64
		if err := pool.QueryRow(ctx, statement, key).Scan(&hits); err != nil {
			b.Fatal(err)
		}
	}
}

// inTurn lets one caller do the one and then the other for a while each, and returns the median
// time of each in microseconds, turn by turn.
func inTurn(b *testing.B, names []string, one, other func(context.Context, string)) (ones, others []float64) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	random := rand.New(rand.NewPCG(1, 1))
	turn := func(ask func(context.Context, string), while time.Duration) float64 {
		var took []float64
		for began := time.Now(); time.Since(began) < while; {
			key, start := names[random.IntN(len(names))], time.Now()
			ask(ctx, key)
			took = append(took, float64(time.Since(start).Nanoseconds())/1000)
		}
		return median(took)
	}
	for _, ask := range []func(context.Context, string){one, other} {
		turn(ask, 300*time.Millisecond) // connections, plans
	}
	for b.Loop() {
		ones = append(ones, turn(one, 300*time.Millisecond))
		others = append(others, turn(other, 300*time.Millisecond))
	}
	return ones, others
}

// report the medians of all turns, and of the ratios of two that followed each other.
func report(b *testing.B, ones []float64, name string, others []float64, otherName, ratio string) {
	b.Helper()
	ratios := make([]float64, len(ones))
	for i := range ones {
		ratios[i] = ones[i] / others[i]
	}
	b.ReportMetric(median(slices.Clone(ones)), name)
	b.ReportMetric(median(slices.Clone(others)), otherName)
	b.ReportMetric(median(ratios), ratio)
	b.ReportMetric(0, "ns/op")
}

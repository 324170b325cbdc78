package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// What a permit costs one caller, beside a take, and one whose number of places is one of 10,000 rules of the table:
// they take turns, so all meet the same machine.
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

// BenchmarkDoAll compares groups of three buckets with single ones, in turns on one server: the
// ratio of the times per decision of DoAll and Allow, for one caller and for 64. "hot": all
// callers ask for the same buckets. "users": each has one of their own, in groups also one of ten
// organisations' and the one of all.
//
//	go test ./integration -run xxx -bench DoAll -benchtime 5x
func BenchmarkDoAll(b *testing.B) {
	pool := newMigrated(b)
	limiter := newLimiter(b, pool, strategies.TokenBucket{}, pglimit.Config{Name: "bench", Limit: pglimit.PerSecond(1_000_000_000)})
	groups := make([][]pglimit.Request, 64) // of each user
	for user := range groups {
		groups[user] = []pglimit.Request{{Key: fmt.Sprint("user:", user), Tokens: 1}, {Key: fmt.Sprint("org:", user%10), Tokens: 1}, {Key: "all", Tokens: 1}}
	}
	ask := func(user int, all bool) (err error) {
		if all {
			_, err = limiter.DoAll(b.Context(), groups[user]...)
		} else {
			_, err = limiter.Allow(b.Context(), groups[user][0].Key)
		}
		return err
	}
	// perSecond is how many decisions the callers get in a while.
	perSecond := func(b *testing.B, callers, users int, all bool) float64 {
		const while = 300 * time.Millisecond
		done := make([]int, callers)
		var work sync.WaitGroup
		began := time.Now()
		for i := range callers {
			work.Go(func() {
				for time.Since(began) < while {
					if err := ask(i%users, all); err != nil {
						b.Error(err)
						return
					}
					done[i]++
				}
			})
		}
		work.Wait()
		total := 0
		for _, n := range done {
			total += n
		}
		return float64(total) / time.Since(began).Seconds()
	}
	for _, load := range []struct {
		name           string
		callers, users int
	}{{"one caller", 1, 1}, {"64 callers, hot", 64, 1}, {"64 callers, users", 64, 64}} {
		b.Run(load.name, func(b *testing.B) {
			var single, all []float64
			for b.Loop() {
				single = append(single, perSecond(b, load.callers, load.users, false))
				all = append(all, perSecond(b, load.callers, load.users, true))
			}
			b.ReportMetric(median(single), "Allow/s")
			b.ReportMetric(median(all), "DoAll/s")
			b.ReportMetric(median(single)/median(all), "times")
			b.ReportMetric(0, "ns/op")
		})
	}
}

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

// What the Go side costs: decisions per second of token_bucket with 64 callers on 64
// connections, as a ratio to what pgbench gets from the very same statement with
// as many. The two take turns; the median of their ratios is reported.
func BenchmarkTokenBucketBesidePgbench(b *testing.B) {
	pgbench := findPgbench(b)
	const conns, keys, turn = 64, 100_000, 3 * time.Second
	script := filepath.Join(b.TempDir(), "take.sql")
	err := os.WriteFile(script, []byte(`\set k random(0, 99999)
select pglimit.token_bucket_take('key:' || :k, 'load', 1000, 1000000000, 1, 1, null, null, true);
`), 0o600)
	if err != nil {
		b.Fatal(err)
	}
	pool := newMigrated(b)
	ours := load{
		strategy: strategies.TokenBucket{}, pools: []*pgxpool.Pool{newPool(b, databaseURL(pool), conns)},
		limit: pglimit.PerSecond(1_000_000), callers: conns, keys: keys,
	}
	ours.run(soon(b, turn), b) // makes the rows, prepares the statement
	var ratios, rates, theirs []float64
	for b.Loop() {
		out, err := exec.CommandContext(b.Context(), pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(conns), "-j", "2",
			"-T", strconv.Itoa(int(turn.Seconds())), "-f", script, databaseURL(pool)).CombinedOutput()
		tps := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
		if err != nil || tps == nil {
			b.Fatalf("%v: %s", err, out)
		}
		reference, err := strconv.ParseFloat(string(tps[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		_, decisions := ours.run(soon(b, turn), b)
		rate := float64(decisions) / turn.Seconds()
		rates, theirs, ratios = append(rates, rate), append(theirs, reference), append(ratios, rate/reference)
	}
	b.ReportMetric(median(rates), "decisions/s")
	b.ReportMetric(median(theirs), "pgbench-tps")
	b.ReportMetric(median(ratios), "x-pgbench")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// findPgbench looks in the PATH and where Debian has it.
func findPgbench(b *testing.B) string {
	b.Helper()
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(found) == 0 {
		b.Skip("there is no pgbench on this machine")
	}
	return found[len(found)-1]
}

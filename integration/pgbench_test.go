package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

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
		limit: pglimit.PerSecond(1_000_000), callers: conns, keys: keys, unaudited: true,
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
		got := ours.run(soon(b, turn), b)
		rate := float64(got.decisions) / turn.Seconds()
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

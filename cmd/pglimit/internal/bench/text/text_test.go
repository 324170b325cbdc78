package text

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

var update = flag.Bool("update", false, "write the files in testdata")

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o750), os.WriteFile(path, []byte(got), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal([]byte(got), want) {
		t.Errorf("%s differs (go test -update writes it); got:\n%s", path, got)
	}
}

// trouble is a report in which something of everything went wrong.
func troubled() result.Report {
	r := suite(2)
	r.Interrupted = true
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Strategy == "exclusion_range" && run.Scenario == "many-keys-granted":
			run.Audit.OverTokens, run.Audit.DenialsNotDue, run.Audit.Worst = 12, 3, `12 tokens too many in bucket "user:1"`
			run.Audit.Verdict = run.Audit.Judge(run.Denied)
			run.Errors = map[string]int64{"40P01 deadlock_detected": 72, "unanswered": 4, "unserved": 2, "timeout": 1, "overloaded": 9}
			run.FirstErrors = map[string]string{"40P01 deadlock_detected": "deadlock\n detected"}
			run.Deadlocks = new(int64(72))
		case run.Strategy == "upsert" && run.Scenario == "one-per-2s":
			run.WALBytesPerDecision, run.WALBytes, run.Deadlocks, run.DeadTuples, run.HOTUpdateRatio, run.TransactionIDsPerDecision = nil, nil, nil, nil, nil, nil
			run.Audit = nil
		case run.Strategy == "upsert" && run.Scenario == "hot-key-granted-stages":
			run.Audit.OverTokens, run.Audit.Verdict = 1, "OVER by 1"
		}
	}
	return r
}

// writeUpReport has 600 seconds of the write-up's load.
func writeUpReport() result.Report {
	r := suite(1)
	scenario := r.Scenarios[4]
	scenario.AtMost, scenario.Parameters.Phases = 300, []result.Phase{{From: 5, To: 5, Seconds: 180}, {From: 50, To: 50, Seconds: 180}, {From: 100, To: 100, Seconds: 240}}
	scenario.Parameters.Loop, scenario.Parameters.Instances, scenario.Parameters.DurationSeconds = "open", 2, 600
	r.Scenarios = []result.Scenario{scenario}
	var runs []result.Run
	for i, s := range append(fixtureStrategies, "published_for_update_nowait", "published_exclusion") {
		run := fixtureRun(fixtureLoads[4], scenario, "token_bucket", 0, 1)
		run.Strategy, run.Seconds, run.Allowed, run.Granted, run.Denied = s, 600, 300, 300, 33_600
		run.Decisions = run.Allowed + run.Denied
		switch i {
		case 4:
			run.Allowed, run.Granted = 312, 312
		case 5:
			run.Allowed, run.Granted, run.Denied, run.Deadlocks, run.Latency.Max = 110, 110, 7_000, new(int64(26_800)), 31e6
			run.Errors = map[string]int64{"40P01 deadlock_detected": 26_800}
		}
		runs = append(runs, run)
	}
	r.Runs = runs
	return r
}

func capacity() result.Report {
	r := suite(1)
	r.Scenarios, r.Runs = r.Scenarios[:1], nil
	for i, s := range append(fixtureStrategies, "published_exclusion") {
		c := result.Capacity{Strategy: s, P99Bound: 10_000, Rate: float64(20_000 - 4000*i)}
		for _, n := range []int{1, 8, 64, 512} {
			c.Sweep = append(c.Sweep, result.CapacityPoint{Callers: n, DecisionsPerSecond: min(float64(2000*n), 21_000), P50: 400, P99: 1200 * float64(n)})
		}
		if i == 4 {
			c.Rate, c.Sweep[3].FailedShare = 0, 0.2
		}
		c.Probes = []result.CapacityPoint{{Rate: 30_000, P99: 80_000}, {Rate: c.Rate, P99: 8_450, Kept: c.Rate > 0, Verdict: "exact"}}
		r.Capacity = append(r.Capacity, c)
	}
	return r
}

func compared(t *testing.T) string {
	t.Helper()
	before, after := suite(3), suite(3)
	after.Server.Version, after.Scenarios[0].Parameters.Keys = "18.1", 20_000
	for i := range after.Runs {
		if run := &after.Runs[i]; run.Strategy == "token_bucket" {
			run.GrantsPerSecond, run.GrantLatency.P99 = run.GrantsPerSecond*1.4, run.GrantLatency.P99*1.25
		}
	}
	after.Runs = after.Runs[:len(after.Runs)-1]
	c, err := compare.Reports(before, after)
	if err != nil {
		t.Fatal(err)
	}
	c.Pairs = c.Pairs[:3]
	return Compare(c)
}

// everything that is printed, by the name of its file.
func everything(t *testing.T, o Options) map[string]string {
	t.Helper()
	return map[string]string{
		"suite_rounds.txt":   Suite(suite(3), Advice(suite(3)), o),
		"suite_trouble.txt":  Suite(troubled(), Advice(troubled()), o),
		"writeup.txt":        WriteUp(writeUpReport(), o),
		"capacity.txt":       Capacity(capacity()),
		"scenarios.txt":      Scenarios(suite(1).Scenarios[:5]),
		"compare_rounds.txt": compared(t),
	}
}

func TestWhatIsPrinted(t *testing.T) {
	t.Parallel()
	for file, got := range everything(t, Options{}) {
		golden(t, file, got)
		for line := range strings.Lines(got) {
			if wide := width(strings.TrimSuffix(line, "\n")); wide > Width || strings.HasSuffix(line, " \n") {
				t.Errorf("%s: %d columns, at most %d, and no space at the end: %q", file, wide, Width, line)
			}
		}
	}
	details := troubled()
	details.Scenarios = details.Scenarios[:1]
	golden(t, "details.txt", Details(details))
}

func TestColourChangesNoText(t *testing.T) {
	t.Parallel()
	escape := regexp.MustCompile("\x1b\\[[0-9;]*m")
	plain := everything(t, Options{})
	for file, got := range everything(t, Options{Colour: true}) {
		if escape.ReplaceAllString(got, "") != plain[file] {
			t.Errorf("%s differs in colour", file)
		}
		if strings.HasPrefix(file, "suite") && !strings.Contains(got, "\x1b[32mtoken_bucket *") {
			t.Errorf("%s: the best row is not green", file)
		}
	}
	if bad := "\x1b[31mOVER by 12"; !strings.Contains(Suite(troubled(), nil, Options{Colour: true}), bad) {
		t.Error("a fault is not red")
	}
}

// A sample of 1 in 8 overlooks 22 wrong denials with a chance of (7/8)^22 = 5.3 %.
func TestWhatASampleMayMiss(t *testing.T) {
	t.Parallel()
	if got := missed(8); got != 22 {
		t.Errorf("%d, want 22", got)
	}
	r := suite(1)
	r.Scenarios = r.Scenarios[6:7]
	if got := Details(r); strings.Count(got, "token_bucket: every grant was checked, but only 1 denial of 8: up to 22 wrong denials") != 1 {
		t.Errorf("what the sample may miss is not said in one sentence:\n%s", got)
	}
}

// Nothing measured is no fault of the printing.
func TestEmptyReports(t *testing.T) {
	t.Parallel()
	var r result.Report
	for what, got := range map[string]string{"Suite": Suite(r, nil, Options{}), "Capacity": Capacity(r), "WriteUp": WriteUp(r, Options{}), "Scenarios": Scenarios(nil)} {
		if got != "" {
			t.Errorf("%s prints %q", what, got)
		}
	}
	r = suite(1)
	r.Scenarios = r.Scenarios[5:6] // with stages, and without the scenario to compare it with
	if got := Suite(r, nil, Options{}); !strings.Contains(got, "many keys, all granted, with stages: 64 callers") {
		t.Errorf("it is not printed as a scenario of its own:\n%s", got)
	}
}

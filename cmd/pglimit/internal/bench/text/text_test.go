package text

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

var update = flag.Bool("update", false, "write the files in testdata")

// troubled is a report in which something of everything went wrong.
func troubled() result.Report {
	r := resulttest.Report()
	r.Interrupted = true
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Strategy == "exclusion_range" && run.Scenario == "many-keys-granted":
			run.Audit.OverTokens, run.Audit.DenialsNotDue, run.Audit.Worst = 12, 3, `12 tokens too many in bucket "user:1"`
			run.Audit.Verdict = run.Audit.Judge(run.Denied)
			run.Errors = map[string]int64{"40P01 deadlock_detected": 72, "unanswered": 4, "unserved": 2, "timeout": 1}
			run.FirstErrors = map[string]string{"40P01 deadlock_detected": "deadlock\n detected"}
			run.Deadlocks = new(int64(72))
		case run.Strategy == "upsert" && run.Scenario == "partners":
			run.WALBytesPerDecision, run.WALBytes, run.Deadlocks = nil, nil, nil
			run.DeadTuples, run.HOTUpdateRatio, run.TransactionIDsPerDecision = nil, nil, nil
			run.Audit = nil
		case run.Strategy == "upsert" && run.Scenario == "hot-key-granted-staged":
			run.Audit.OverTokens, run.Audit.Verdict = 1, "OVER by 1"
		}
	}
	return r
}

func compared(t *testing.T) string {
	t.Helper()
	before, after := resulttest.Report(), resulttest.Report()
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

// printed is everything that is printed, by the name of its file.
func printed(t *testing.T, o Options) map[string]string {
	t.Helper()
	suite, details := resulttest.Report(), troubled()
	details.Scenarios = details.Scenarios[:1]
	return map[string]string{
		"suite.txt":     Suite(suite, Advice(suite), o),
		"trouble.txt":   Suite(troubled(), Advice(troubled()), o),
		"writeup.txt":   WriteUp(resulttest.WriteUp(), o),
		"capacity.txt":  Capacity(resulttest.Capacity()),
		"scenarios.txt": Scenarios(suite.Scenarios[:5]),
		"compare.txt":   compared(t),
		"details.txt":   Details(details),
	}
}

func TestWhatIsPrinted(t *testing.T) {
	t.Parallel()
	for file, got := range printed(t, Options{}) {
		path := filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
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
		for line := range strings.Lines(got) {
			if wide := width(strings.TrimSuffix(line, "\n")); wide > Width && file != "details.txt" {
				t.Errorf("%s: %d columns, at most %d: %q", file, wide, Width, line)
			}
		}
	}
}

func TestColourChangesNoText(t *testing.T) {
	t.Parallel()
	escape := regexp.MustCompile("\x1b\\[[0-9;]*m")
	plain := printed(t, Options{})
	for file, got := range printed(t, Options{Colour: true}) {
		if escape.ReplaceAllString(got, "") != plain[file] {
			t.Errorf("%s differs in colour", file)
		}
	}
	if bad := "\x1b[31mOVER by 12"; !strings.Contains(Suite(troubled(), nil, Options{Colour: true}), bad) {
		t.Error("a fault is not red")
	}
}

// Nothing measured is no fault of the printing.
func TestEmptyReports(t *testing.T) {
	t.Parallel()
	var r result.Report
	if got := Suite(r, nil, Options{}) + Capacity(r) + WriteUp(r, Options{}) + Scenarios(nil); got != "" {
		t.Errorf("it prints %q", got)
	}
	r = resulttest.Report()
	r.Scenarios = r.Scenarios[5:6] // with stages, and without the scenario to compare it with
	if got := Suite(r, nil, Options{}); !strings.Contains(got, r.Scenarios[0].Title+": ") {
		t.Errorf("it is not printed as a scenario of its own:\n%s", got)
	}
}

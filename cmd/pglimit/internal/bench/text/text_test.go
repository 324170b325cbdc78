package text

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

var update = flag.Bool("update", false, "write the files in testdata")

// troubled is a report in which something of everything went wrong.
func troubled() result.Report {
	r := suite()
	r.Interrupted = true
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Strategy == "exclusion_range" && run.Scenario == "many-keys-granted":
			run.Audit.OverTokens, run.Audit.DenialsNotDue, run.Audit.Worst = 12, 3, `12 tokens too many in bucket "user:1"`
			run.Audit.Verdict = run.Audit.Judge(run.Denied)
			run.Errors = map[string]int64{"40P01 deadlock_detected": 72, "timeout": 1}
		case run.Strategy == "upsert" && run.Scenario == "partners":
			run.WALBytesPerDecision = nil
			run.Audit = nil
		case run.Strategy == "upsert":
			run.Errors = map[string]int64{"timeout": run.Decisions}
		}
	}
	return r
}

func compared(t *testing.T) string {
	t.Helper()
	before, after := suite(), suite()
	after.Server.Version, after.Scenarios[0].Keys = "18.1", 20_000
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

// suite has the loads of the default run, with their titles.
func suite() result.Report {
	r := resulttest.Report()
	var kept []result.Scenario
	for _, s := range r.Scenarios {
		all, err := scenario.ByName(s.Name)
		if err != nil || s.Name == "many-keys-denied" {
			continue
		}
		s.Title, s.CompareBy = all[0].Title, all[0].CompareBy
		kept = append(kept, s)
	}
	r.Scenarios = kept
	return r
}

// Where the answer is in the way of a test: what is printed of a report with one load.
func only(r result.Report, scenario int) result.Report {
	r.Scenarios = r.Scenarios[scenario : scenario+1]
	return r
}

func TestWhatIsPrinted(t *testing.T) {
	t.Parallel()
	const left = "Not run: sliding_window, sliding_log, warm_up (--strategies all). --details prints all figures, --report FILE.html draws them."
	for file, got := range map[string]string{
		"screen.txt":   Screen(suite(), left),
		"trouble.txt":  Screen(troubled(), left),
		"single.txt":   Screen(only(suite(), 2), left),
		"writeup.txt":  Screen(resulttest.WriteUp(), left),
		"capacity.txt": Screen(resulttest.Capacity(), ""),
		"compare.txt":  compared(t),
		"details.txt":  Details(only(troubled(), 0)),
	} {
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
		if got != string(want) {
			t.Errorf("%s differs (go test -update writes it); got:\n%s", path, got)
		}
		for line := range strings.Lines(got) {
			if wide := width(strings.TrimSuffix(line, "\n")); wide > Width {
				t.Errorf("%s: %d columns, at most %d: %q", file, wide, Width, line)
			}
		}
	}
}

// The first line is of all loads, not of the first one.
func TestFirstLineIsOfAllLoads(t *testing.T) {
	t.Parallel()
	r := suite()
	r.Scenarios[1].Callers, r.Scenarios[2].Phases = 4, []scenario.Phase{{Length: time.Second}}
	for i := range r.Runs {
		if r.Runs[i].Scenario == r.Scenarios[3].Name {
			r.Runs[i].Round = 1
		}
	}
	want := "PostgreSQL 17.6, a throwaway; 8 CPUs; 4 to 16 callers; 1 to 2 rounds of 1s to 2s"
	if first, _, _ := strings.Cut(Screen(r, ""), "\n"); first != want {
		t.Errorf("%q, want %q", first, want)
	}
}

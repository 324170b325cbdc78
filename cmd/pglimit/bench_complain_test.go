package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/gate"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

func exactRun(strategy string) result.Run {
	return result.Run{
		Scenario: "partners", Strategy: strategy, Round: 1, Decisions: 100, Errors: map[string]int64{},
		Audit: &result.Audit{Verdict: result.VerdictExact},
	}
}

func failing(run result.Run, n int64) result.Run {
	run.Errors = map[string]int64{"timeout": n}
	return run
}

func over(run result.Run, tokens int64) result.Run {
	run.Audit = &result.Audit{OverTokens: tokens, Verdict: "OVER"}
	return run
}

// What a pipeline must not overlook is said, a line each, and makes the exit code 1.
func TestBenchComplains(t *testing.T) {
	t.Parallel()
	fine := exactRun("upsert")
	unaudited := fine
	unaudited.Audit = nil
	notDue := fine
	notDue.Audit = &result.Audit{DenialsNotDue: 5, Verdict: "5 denials not due"}
	for name, c := range map[string]struct {
		runs []result.Run
		want string
	}{
		"nothing was run":          {nil, ""},
		"all is well":              {[]result.Run{fine, unaudited}, ""},
		"denials that are not due": {[]result.Run{notDue}, ""}, // --fail-if is for these
		"one of several":           {[]result.Run{fine, over(fine, 3), fine}, "upsert, partners: granted 3 tokens too many"},
		"the write-up's, too":      {[]result.Run{over(exactRun("published_exclusion"), 3)}, "published_exclusion, partners: granted 3 tokens too many"},
		"half failed":              {[]result.Run{failing(fine, 100)}, ""},
		"more than half failed":    {[]result.Run{failing(fine, 102)}, "upsert, partners: 50 % of the requests failed"},
		"the write-up's fail":      {[]result.Run{failing(exactRun("published_exclusion"), 900)}, "published_exclusion, partners: 90 % of the requests failed"},
		"both": {[]result.Run{over(failing(fine, 300), 1)},
			"upsert, partners: granted 1 tokens too many\nupsert, partners: 75 % of the requests failed"},
	} {
		if said := strings.Join(complaints(result.Report{Runs: c.runs}, nil), "\n"); said != c.want {
			t.Errorf("%s: says %q; want %q", name, said, c.want)
		}
	}
}

// A condition is met by each run that does so.
func TestBenchComplainsOfConditions(t *testing.T) {
	t.Parallel()
	condition, err := gate.Parse("errors>1%")
	if err != nil {
		t.Fatal(err)
	}
	fine := exactRun("upsert")
	for failed, lines := range map[int64]int{1: 0, 50: 2} {
		r := result.Report{Runs: []result.Run{fine, failing(fine, failed), failing(exactRun("published_exclusion"), failed)}}
		said := complaints(r, []gate.Condition{condition})
		if len(said) != lines || lines > 0 && !strings.HasPrefix(said[0], "upsert, partners") {
			t.Errorf("%d failed: says %q; want %d lines", failed, said, lines)
		}
	}
}

func TestCapacityComplains(t *testing.T) {
	t.Parallel()
	exact, wrong := []result.Probe{{}, {}}, []result.Probe{{}, {OverTokens: 4}}
	for name, c := range map[string]struct {
		found result.Capacity
		want  string
	}{
		"well":       {result.Capacity{Rate: 10, Probes: exact}, ""},
		"too much":   {result.Capacity{Rate: 10, Probes: wrong}, "upsert, capacity: granted 4 tokens too many"},
		"never fast": {result.Capacity{Probes: exact}, "upsert kept p99 under 5ms at no rate"},
	} {
		c.found.Strategy, c.found.P99Bound = "upsert", 5000
		if said := strings.Join(complaints(result.Report{Capacity: []result.Capacity{c.found}}, nil), "\n"); said != c.want {
			t.Errorf("%s: says %q; want %q", name, said, c.want)
		}
	}
}

// A report that cannot be written is heard of before anything is measured, and a bench that
// fails leaves an earlier report as it was.
func TestBenchKeepsAnEarlierReport(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "bench.html")
	if err := os.WriteFile(name, []byte("earlier"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := call(t.Context(), "bench", "--report", name, "--database-url", "postgres://127.0.0.1:1/x?connect_timeout=1")
	text, err := os.ReadFile(name)
	if code != 2 || err != nil || string(text) != "earlier" {
		t.Errorf("exit code %d, %q; the report is %q, %v", code, stderr, text, err)
	}
	code, _, stderr = call(t.Context(), "bench", "--report", t.TempDir(), "--database-url", "postgres://127.0.0.1:1/x")
	if code != 2 || !strings.HasPrefix(stderr, "pglimit: --report: ") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

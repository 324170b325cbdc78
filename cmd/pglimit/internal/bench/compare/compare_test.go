package compare

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// report of one scenario, with grants per second of a strategy, a round each.
func report(scenario, strategy string, rates ...float64) result.Report {
	r := result.Report{Scenarios: []result.Scenario{{Name: scenario, Keys: 20, Limit: pglimit.PerSecond(20)}}}
	for i, f := range rates {
		r.Runs = append(r.Runs, result.Run{
			Scenario: scenario, Strategy: strategy, Round: i + 1, GrantsPerSecond: f, DecisionsPerSecond: f, Decisions: 100, RoundTrips: 100, Allowed: 100,
			GrantLatency: result.Latency{Count: 100, P50: 1e6 / f, P99: 2e6 / f}, WALBytesPerDecision: new(230.0),
		})
	}
	return r
}

func of(t *testing.T, before, after result.Report) Comparison {
	t.Helper()
	c, err := Reports(before, after)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (p Pair) figure(t *testing.T, name string) Figure {
	t.Helper()
	for _, f := range p.Figures {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("there is no %s in %+v", name, p.Figures)
	return Figure{}
}

func TestWhatIsCompared(t *testing.T) {
	t.Parallel()
	pair := of(t, report("s", "a", 100), report("s", "a", 200)).Pairs[0]
	var names []string
	for _, f := range pair.Figures {
		names = append(names, f.Name)
	}
	if got, want := strings.Join(names, " "), "decisions/s grants/s p50(grant) p99(grant) trips/decision wal/decision"; got != want {
		t.Errorf("%s, want %s: nothing was denied", got, want)
	}
	if f := pair.figure(t, "p99(grant)"); f.Ratio != 0.5 || f.Verdict != Better {
		t.Errorf("%+v", f)
	}
}

// What one of the reports does not know is not zero, and JSON can write it.
func TestUnknownFigures(t *testing.T) {
	t.Parallel()
	after := report("s", "a", 100)
	after.Runs[0].WALBytesPerDecision = nil
	c := of(t, report("s", "a", 100), after)
	if f := c.Pairs[0].figure(t, "wal/decision"); f.New.Runs != 0 || f.Old.Runs != 1 || f.Verdict != "" || f.Ratio != 0 {
		t.Errorf("%+v", f)
	}
	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}

func TestWhatDiffersIsNamed(t *testing.T) {
	t.Parallel()
	before, after := report("s", "a", 100), report("s", "a", 100)
	if c := of(t, before, after); len(c.Differs) != 0 {
		t.Errorf("nothing differs, but %q", c.Differs)
	}
	s := &after.Scenarios[0]
	s.Keys, s.Callers, s.Limit, s.Phases, after.Seed = 100, 64, pglimit.PerHour(1), []scenario.Phase{{Rate: 500, Length: time.Second}}, 7
	after.Server = result.Server{Version: "18.1", Settings: map[string]string{"fsync": "off"}}
	after.Client.CPUs, after.Interrupted, after.AuditDecisions = 8, true, 5
	got := strings.Join(of(t, before, after).Differs, "\n")
	want := "server fsync none, now off\nserver version none, now 18.1\nclient cpus 0, now 8\naudit decisions 0, now 5\none of the runs was interrupted\n" +
		"s: callers 0, now 64\ns: keys 20, now 100\ns: limit 20/1s, now 1/1h\ns: phases [], now [{\"duration\":\"1s\",\"rate\":500}]"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestWhatOneReportHasAloneIsNamed(t *testing.T) {
	t.Parallel()
	both, more := report("s", "a", 100), report("s", "a", 100)
	more.Runs = append(more.Runs, result.Run{Scenario: "s", Strategy: "b"})
	if got := of(t, both, more).Differs; len(got) != 1 || got[0] != "s: b is only in the new report" {
		t.Errorf("%q", got)
	}
	if got := of(t, more, both).Differs; len(got) != 1 || got[0] != "s: b is only in the old report" {
		t.Errorf("%q", got)
	}
}

func TestNothingInCommonSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for want, pair := range map[string][2]result.Report{
		"no strategy under one scenario in common: run both with the same": {report("s", "a", 1), report("s", "b", 1)},
		"in common":   {report("s", "a", 1), report("t", "a", 1)},
		"no strategy": {{}, report("s", "a", 1)},
	} {
		if _, err := Reports(pair[0], pair[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

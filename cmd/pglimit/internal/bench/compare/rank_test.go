package compare

import (
	"math"
	"reflect"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

func figure(values ...float64) result.Figure {
	row := result.Row{Runs: make([]result.Run, 0, len(values))}
	for _, v := range values {
		row.Runs = append(row.Runs, result.Run{DecisionsPerSecond: v})
	}
	return row.Figure(func(run result.Run) float64 { return run.DecisionsPerSecond })
}

func TestNoise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b       result.Figure
		noise, tie bool
	}{
		{figure(100), figure(110), true, true},
		{figure(100), figure(130), false, false},
		{figure(100, 101, 102), figure(103, 104, 105), false, false},
		{figure(100, 101, 104), figure(103, 104, 105), true, true},
		{figure(100, 109, 110), figure(111, 112, 113), false, true}, // 3 % apart, and 9 % in itself
		{figure(100, 101), figure(103, 104), true, true},            // two runs each lie apart by chance
		{figure(100, 101), figure(130, 131), false, false},          // but hardly that far
		{figure(0), figure(0), true, true},
		{figure(math.NaN()), figure(1), false, false},
	} {
		for range 2 {
			if got := Noise(c.a, c.b); got != c.noise {
				t.Errorf("%v and %v are noise: %v, want %v", c.a, c.b, got, c.noise)
			}
			if got := Tie(c.a, c.b); got != c.tie {
				t.Errorf("%v and %v are a tie: %v, want %v", c.a, c.b, got, c.tie)
			}
			c.a, c.b = c.b, c.a
		}
	}
}

// In an open loop all that keep up decide as often as requests arrive.
func TestAnOpenLoopIsComparedByLatency(t *testing.T) {
	t.Parallel()
	g := result.Group{Scenario: result.Scenario{CompareBy: result.ByGrants, Parameters: result.Parameters{Loop: "open"}}}
	for name, p99 := range map[string]float64{"slow": 900, "fast": 300, "never": 0} {
		run := result.Run{Strategy: name, GrantsPerSecond: p99, Latency: result.Latency{Count: 1, P99: 1}}
		if p99 > 0 {
			run.GrantLatency = result.Latency{Count: 1, P99: p99}
		}
		g.Rows = append(g.Rows, result.Row{Strategy: name, Runs: []result.Run{run}})
	}
	var got []string
	for _, s := range Rank(g) {
		got = append(got, s.Strategy)
	}
	if want := []string{"fast", "slow", "never"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	g.Scenario.Parameters.Loop = "closed"
	if first := Rank(g)[0].Strategy; first != "slow" {
		t.Errorf("in a closed loop %s is first, want the one with most grants", first)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	row := result.Row{Runs: []result.Run{
		{Decisions: 90, Granted: 303, Errors: map[string]int64{"a": 5, "b": 5}, Deadlocks: new(int64(1)), Audit: &result.Audit{OverTokens: 2, DenialsNotDue: 1}},
		{Decisions: 100, Granted: 301, Audit: &result.Audit{OverTokens: 4, DenialsNotDue: 1}},
	}}
	got := FaultsOf(result.Scenario{AtMost: 300}, row)
	if want := (Faults{Over: 4, TooMany: 3, NotDue: 2, Deadlocks: 1, Failed: 10, Requests: 200}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if few := (Faults{Failed: 2, Requests: 1000}); few.Wrong() || !few.Any() {
		t.Errorf("%+v is wrong, or does not count", few)
	}
	for _, harmless := range []Faults{{Failed: 1, Requests: 1000}, {Deadlocks: 3, Requests: 1000}} {
		if harmless.Any() {
			t.Errorf("%+v counts", harmless)
		}
	}
	if none := FaultsOf(result.Scenario{}, result.Row{Runs: []result.Run{{Decisions: 1, Granted: 1}}}); none.Any() {
		t.Errorf("%+v", none)
	}
}

func TestTheBestHasNoFaultAndDecidesByTheLimit(t *testing.T) {
	t.Parallel()
	group := func(runs ...result.Run) result.Group {
		g := result.Group{Scenario: result.Scenario{CompareBy: result.ByDecisions}}
		for _, run := range runs {
			g.Rows = append(g.Rows, result.Row{Strategy: run.Strategy, Runs: []result.Run{run}})
		}
		return g
	}
	good := result.Run{Strategy: "good", DecisionsPerSecond: 1, Decisions: 100}
	contended := result.Run{Strategy: "contended", DecisionsPerSecond: 2, Decisions: 100, Contended: 6}
	over := result.Run{Strategy: "over", DecisionsPerSecond: 3, Decisions: 100, Audit: &result.Audit{OverTokens: 1}}
	for want, g := range map[string]result.Group{"good": group(over, good, contended), "contended": group(contended, over), "": group(over)} {
		standings := Rank(g)
		if standings[0].Main.Median < standings[len(standings)-1].Main.Median {
			t.Errorf("the fastest is not the first: %+v", standings)
		}
		got := ""
		if best := Best(standings); best >= 0 {
			got = standings[best].Strategy
		}
		if got != want {
			t.Errorf("%q is the best, want %q", got, want)
		}
	}
}

// Only among those that are as good otherwise is it open which is the faster.
func TestLevel(t *testing.T) {
	t.Parallel()
	best := Standing{Pace: figure(100)}
	for name, c := range map[string]struct {
		other Standing
		want  bool
	}{
		"close":     {Standing{Pace: figure(90)}, true},
		"slower":    {Standing{Pace: figure(70)}, false},
		"faulty":    {Standing{Pace: figure(90), Faults: Faults{Over: 1}}, false},
		"contended": {Standing{Pace: figure(90), Contended: 0.5}, false},
	} {
		if Level(best, c.other) != c.want || Level(c.other, best) != c.want {
			t.Errorf("%s is level: %v", name, !c.want)
		}
	}
}

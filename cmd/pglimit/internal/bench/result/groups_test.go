package result

import (
	"math"
	"slices"
	"testing"
)

// ran is a run under a scenario with that many grants per second.
func ran(scenario, strategy string, round int, grants float64) Run {
	return Run{Scenario: scenario, Strategy: strategy, Round: round, GrantsPerSecond: grants}
}

func ofRates(rates ...float64) Row {
	var row Row
	for i, rate := range rates {
		row.Runs = append(row.Runs, ran("s", "x", i+1, rate))
	}
	return row
}

func grantsOf(r Run) float64 { return r.GrantsPerSecond }

// Rounds run in turn; groups put together what belongs together, in the order of the first
// round.
func TestGroupsAreByScenarioAndStrategy(t *testing.T) {
	t.Parallel()
	r := Report{
		Scenarios: []Scenario{{Name: "one"}, {Name: "never ran"}, {Name: "two"}},
		Runs: []Run{
			ran("one", "b", 1, 1), ran("one", "a", 1, 2), ran("two", "a", 1, 3),
			ran("one", "b", 2, 4), ran("one", "a", 2, 5),
		},
	}
	groups := r.Groups()
	if len(groups) != 2 || groups[0].Scenario.Name != "one" || groups[1].Scenario.Name != "two" {
		t.Fatalf("%+v, want the groups one and two", groups)
	}
	for _, c := range []struct {
		scenario, strategy string
		want               []float64
	}{{"one", "b", []float64{1, 4}}, {"one", "a", []float64{2, 5}}, {"two", "a", []float64{3}}} {
		group, _ := r.Group(c.scenario)
		row, there := group.Row(c.strategy)
		var got []float64
		for _, run := range row.Runs {
			got = append(got, run.GrantsPerSecond)
		}
		if !there || row.Strategy != c.strategy || !slices.Equal(got, c.want) {
			t.Errorf("%s of %s: %v, want the runs %v", c.strategy, c.scenario, got, c.want)
		}
	}
	if one := groups[0]; len(one.Rows) != 2 || one.Rows[0].Strategy != "b" {
		t.Errorf("%+v, want b first, as it ran", one.Rows)
	}
	if _, there := r.Group("never ran"); there {
		t.Error("there is a group without runs")
	}
	if _, there := groups[1].Row("b"); there {
		t.Error("there is a row without runs")
	}
	if none := (Report{Scenarios: r.Scenarios}).Groups(); none != nil {
		t.Errorf("%+v without runs", none)
	}
}

func TestFigureOfSeveralRuns(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, c := range []struct {
		rates []float64
		want  Figure
	}{
		{[]float64{5}, Figure{5, 5, 5, 1, true}},
		{[]float64{9, 1, 5}, Figure{5, 1, 9, 3, true}},
		{[]float64{9, 1, 7, 5}, Figure{5, 1, 9, 4, true}}, // the lower of 5 and 7
		{[]float64{2, 1}, Figure{1, 1, 2, 2, true}},
		{[]float64{nan, 3, nan, 1, 2}, Figure{2, 1, 3, 3, true}},
		{[]float64{0, nan}, Figure{0, 0, 0, 1, true}},
		{[]float64{1, 2, 3, 4, 5}, Figure{3, 2, 4, 5, true}},
		{[]float64{10, 1, 2, 3, 4, 5, 6, 7, 8, 9}, Figure{5, 3, 8, 10, true}},
	} {
		if got := ofRates(c.rates...).Figure(grantsOf); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.rates, got, c.want)
		}
	}
	for _, rates := range [][]float64{nil, {nan, nan}} {
		if got := ofRates(rates...).Figure(grantsOf); !math.IsNaN(got.Median) || !math.IsNaN(got.Low) || !math.IsNaN(got.High) || got.Runs != 0 {
			t.Errorf("%v: %+v, want no number of no run", rates, got)
		}
	}
}

func TestFailedShareIsOfAllRequests(t *testing.T) {
	t.Parallel()
	run := Run{Decisions: 6, Errors: map[string]int64{"timeout": 1, "40P01": 3}, RoundTrips: 9, Contended: 3}
	if run.Failed() != 4 || run.FailedShare() != 0.4 {
		t.Errorf("%d failed, %v of all; want 4, 0.4", run.Failed(), run.FailedShare())
	}
	if run.TripsPerDecision() != 1.5 || run.ContendedShare() != 0.5 {
		t.Errorf("%v trips, %v contended; want 1.5, 0.5", run.TripsPerDecision(), run.ContendedShare())
	}
	var idle Run
	if idle.FailedShare() != 0 || idle.TripsPerDecision() != 0 || idle.ContendedShare() != 0 {
		t.Error("of nothing there is a share")
	}
	if all := (Run{Errors: map[string]int64{"timeout": 2}}); all.FailedShare() != 1 {
		t.Errorf("%v of the requests failed, want all", all.FailedShare())
	}
}

package result

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// Group is a scenario with the strategies that ran under it.
type Group struct {
	Scenario Scenario
	Rows     []Row // in the order in which the strategies first ran
}

// Row is one strategy under one scenario: its runs, repeated.
type Row struct {
	Strategy string
	Runs     []Run // never empty
}

// Groups returns the runs by scenario and strategy. Scenarios without any run are left
// out.
func (r Report) Groups() []Group {
	var groups []Group
	for _, s := range r.Scenarios {
		g := Group{Scenario: s}
		for _, run := range r.Runs {
			if run.Scenario != s.Name {
				continue
			}
			i := slices.IndexFunc(g.Rows, func(row Row) bool { return row.Strategy == run.Strategy })
			if i < 0 {
				i = len(g.Rows)
				g.Rows = append(g.Rows, Row{Strategy: run.Strategy})
			}
			g.Rows[i].Runs = append(g.Rows[i].Runs, run)
		}
		if len(g.Rows) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// Group of that scenario.
func (r Report) Group(scenario string) (Group, bool) {
	for _, g := range r.Groups() {
		if g.Scenario.Name == scenario {
			return g, true
		}
	}
	return Group{}, false
}

// Row of that strategy.
func (g Group) Row(strategy string) (Row, bool) {
	i := slices.IndexFunc(g.Rows, func(row Row) bool { return row.Strategy == strategy })
	if i < 0 {
		return Row{}, false
	}
	return g.Rows[i], true
}

// Figure is one figure of several runs. Median is the lower of the two in the middle. Low and High are the range in
// which the median of many more runs would lie in about four of five cases: of fewer than five runs all of them, of ten
// the middle six.
type Figure struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Runs   int     `json:"runs"`
	Short  bool    `json:"-"` // a run took less than a second
}

// Figure of the row's runs. Those for which of returns NaN are left out.
func (row Row) Figure(of func(Run) float64) Figure {
	var values []float64
	short := false
	for _, run := range row.Runs {
		if v := of(run); !math.IsNaN(v) {
			values = append(values, v)
			short = short || run.Seconds < 1
		}
	}
	if len(values) == 0 {
		return Figure{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	slices.Sort(values)
	n := len(values)
	out := max(0, int(float64(n)/2-0.65*math.Sqrt(float64(n)))) // at either end
	return Figure{Median: values[(n-1)/2], Low: values[out], High: values[n-1-out], Runs: n, Short: short}
}

// Spread is how far the runs lie apart, as a share of their median: 0.2 is 20 %.
func (f Figure) Spread() float64 {
	if f.Median == 0 || math.IsNaN(f.Median) {
		return 0
	}
	return (f.High - f.Low) / f.Median
}

// Main is the figure that strategies are compared by under this scenario.
func Main(s Scenario) func(Run) float64 {
	return func(run Run) float64 {
		switch s.CompareBy {
		case scenario.ByGrants:
			return run.GrantsPerSecond
		case scenario.ByDenials:
			return run.DenialsPerSecond
		}
		return run.DecisionsPerSecond
	}
}

// Typical is the run whose main figure is the row's median: the one to draw.
func (row Row) Typical(s Scenario) Run {
	median := row.Figure(Main(s)).Median
	for _, run := range row.Runs {
		if Main(s)(run) == median {
			return run
		}
	}
	return row.Runs[0]
}

// Verdict is the worst of the row's runs.
func (row Row) Verdict() string {
	return slices.MaxFunc(row.Runs, byGravity).Verdict()
}

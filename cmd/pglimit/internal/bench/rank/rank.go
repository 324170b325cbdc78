// Package rank orders strategies by what was measured, and says what counts as a fault,
// and which differences are noise. The printed table, the recommendation and the
// comparison of two reports agree because they ask here.
package rank

import (
	"math"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// NotableContention is the share of decisions above which it matters that they were
// denied only because another caller held the row.
const NotableContention = 0.05

// Standing is how a strategy did under one scenario.
type Standing struct {
	result.Row
	Main      result.Figure // the scenario's main figure
	Pace      result.Figure // what strategies are compared by
	Faults    Faults
	Contended float64 // share of the decisions
}

// Of the strategies under one scenario: the fastest first, whatever their faults. Those that are equal stay in the order in which they ran.
func Of(g result.Group) []Standing {
	var standings []Standing
	for _, row := range g.Rows {
		standings = append(standings, Standing{
			row, row.Figure(g.Scenario.Main), Pace(g.Scenario, row), FaultsOf(g.Scenario, row), row.Figure(result.Run.ContendedShare).Median,
		})
	}
	slices.SortStableFunc(standings, func(a, b Standing) int {
		switch x, y := known(a.Pace.Median), known(b.Pace.Median); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return standings
}

// Best is the index of the best standing: the first that has no fault and decides
// nearly all by the limit; else the first that has no fault. -1: all have one.
func Best(standings []Standing) int {
	best := slices.IndexFunc(standings, func(s Standing) bool { return !s.Faults.Any() && !s.OftenContended() })
	if best < 0 {
		best = slices.IndexFunc(standings, func(s Standing) bool { return !s.Faults.Any() })
	}
	return best
}

// OftenContended says that many decisions were denied only because another caller held
// the row.
func (s Standing) OftenContended() bool { return s.Contended > NotableContention }

// Level says that neither is better: too close to call, and without a fault.
func Level(a, b Standing) bool {
	return !a.Faults.Any() && !b.Faults.Any() && a.OftenContended() == b.OftenContended() && Tie(a.Pace, b.Pace)
}

func known(f float64) float64 {
	if math.IsNaN(f) {
		return math.Inf(-1)
	}
	return f
}

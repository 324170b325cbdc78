// Package compare decides: which strategy is the faster under a load, what counts as a
// fault, which differences are noise, which strategy is to be recommended, and what a change
// made better or worse. It knows strategies by their figures alone. Package text says all of
// it in words.
//
//	rank.go      the strategies under one scenario, the fastest first
//	faults.go    what speaks against a strategy
//	noise.go     which figures cannot be told apart
//	evidence.go  a report, arranged for choosing
//	choice.go    the strategy for all loads, if the figures decide for one
//	reports.go   two reports beside each other, and in differs.go what else is not the same
package compare

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

// Rank the strategies under one scenario: the fastest first, whatever their faults. Those that
// are equal stay in the order in which they ran.
func Rank(g result.Group) []Standing {
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

// Pace is what strategies are ordered by. In a closed loop it is the scenario's main
// figure. In an open loop that is given by the arrivals, and the same for all that keep
// up, so there it is the inverse of the 99th percentile of latency.
func Pace(s result.Scenario, row result.Row) result.Figure {
	if !Open(s) {
		return row.Figure(s.Main)
	}
	return row.Figure(func(run result.Run) float64 { return 1e6 / P99(s, run) })
}

// Open says that the scenario is an open loop.
func Open(s result.Scenario) bool { return s.Parameters.Loop == "open" }

// P99 of what strategies are compared by under the scenario, in microseconds. It is not
// a number if there was none.
func P99(s result.Scenario, run result.Run) float64 {
	latency := run.Latency
	switch s.CompareBy {
	case result.ByGrants:
		latency = run.GrantLatency
	case result.ByDenials:
		latency = run.DenialLatency
	}
	return latency.Known(latency.P99)
}

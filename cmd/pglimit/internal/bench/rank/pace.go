package rank

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

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
	if latency.Count == 0 {
		return math.NaN()
	}
	return latency.P99
}

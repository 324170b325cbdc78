package report

import (
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// criterion is the write-up's own: a run may grant so many tokens and no more.
type criterion struct {
	AtMost int64
	Rows   []criterionRow
}

// criterionRow is the worst of the runs of a strategy.
type criterionRow struct {
	Strategy              string
	Least, Most           int64 // tokens granted
	Share                 string
	Deadlocks, Failed     string
	WorstGrant, WorstDeny string
	Kept                  bool
	Verdict               string
}

// ofPossible is the share of what a perfect limiter would have granted for the same arrivals;
// where that is not known, of what may be granted at most.
func ofPossible(atMost int64) func(result.Run) float64 {
	return func(r result.Run) float64 {
		if r.Possible > 0 {
			return float64(r.Granted) / float64(r.Possible)
		}
		return float64(r.Granted) / float64(atMost)
	}
}

// newCriterion is nil where the scenario has none.
func newCriterion(g result.Group) *criterion {
	if g.Scenario.AtMost <= 0 {
		return nil
	}
	c := &criterion{AtMost: g.Scenario.AtMost}
	for _, row := range g.Rows {
		granted := row.Figure(func(r result.Run) float64 { return float64(r.Granted) })
		most := func(unit chart.Unit, of func(result.Run) float64) string {
			worst := row.Figure(of).High
			if math.IsNaN(worst) {
				return "–"
			}
			return unit.Text(worst)
		}
		shown := criterionRow{
			Strategy: row.Strategy, Least: int64(granted.Low), Most: int64(granted.High),
			Share:      chart.Percent.Text(100 * row.Figure(ofPossible(c.AtMost)).Low),
			Deadlocks:  most(chart.Number, func(r result.Run) float64 { return result.Known(r.Deadlocks) }),
			Failed:     most(chart.Percent, func(r result.Run) float64 { return 100 * r.FailedShare() }),
			WorstGrant: most(chart.Micros, func(r result.Run) float64 { return r.GrantLatency.Known(r.GrantLatency.Max) }),
			WorstDeny:  most(chart.Micros, func(r result.Run) float64 { return r.DenialLatency.Known(r.DenialLatency.Max) }),
		}
		switch over, failed := shown.Most-c.AtMost, row.Figure(result.Run.FailedShare).High; {
		case over > 0:
			shown.Verdict = fmt.Sprintf("not kept: %d too many", over)
		case failed > 0:
			shown.Kept, shown.Verdict = true, "kept, but requests failed"
		default:
			shown.Kept, shown.Verdict = true, "kept"
		}
		c.Rows = append(c.Rows, shown)
	}
	return c
}

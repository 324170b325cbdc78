package text

import (
	"fmt"
	"slices"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
)

// small is the spread up to which it does not matter where it was.
const small = 0.05

// certainty says how far the rounds lie apart, and what that means for the differences.
func (a advice) certainty() string {
	prefix := ""
	if a.report.Interrupted {
		prefix = "Interrupted, so all of this rests on a part of the runs. "
	}
	var spreads []float64
	rounds, where := 0, ""
	for _, l := range a.All() {
		for _, s := range l.Standings {
			rounds = max(rounds, s.Pace.Runs)
			if s.Pace.Runs < 2 {
				continue
			}
			if spread := s.Pace.Spread(); len(spreads) == 0 || spread > slices.Max(spreads) {
				where = s.Strategy
				if len(a.All()) > 1 {
					where += ", " + l.Scenario.Title
				}
			}
			spreads = append(spreads, s.Pace.Spread())
		}
	}
	if len(spreads) == 0 {
		return prefix + fmt.Sprintf("One round: spread not known (--repeat 3); under %s is too close to call", Share(compare.SingleRun))
	}
	typical, largest := middleOf(spreads), slices.Max(spreads)
	if largest <= small || Share(typical) == Share(largest) {
		return prefix + fmt.Sprintf("%d rounds differ by at most %s; less than that is too close to call", rounds, Share(largest))
	}
	return prefix + fmt.Sprintf("%d rounds differ by %s typically, %s at most (%s); less than that is too close to call",
		rounds, Share(typical), Share(largest), where)
}

func middleOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

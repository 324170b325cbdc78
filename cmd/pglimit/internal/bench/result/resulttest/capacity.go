package resulttest

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Capacity is what "pglimit bench capacity" finds of four strategies: a bisection of the arrival rate for a p99 of 10 ms.
func Capacity() result.Report {
	r := header("pglimit bench capacity --p99 10ms --report capacity.html")
	r.Scenarios = []result.Scenario{common(suite[0].scenario)}
	for _, like := range suite[0].shapes {
		c := result.Capacity{Strategy: like.strategy, P99Bound: 10_000}
		c.Probes = append(c.Probes, result.Probe{DecisionsPerSecond: like.grants, P99: like.grantP50 * 3})
		low, high := 0.0, like.grants*2
		for rate := like.grants * 0.8; high-low > like.grants*0.05; rate = (low + high) / 2 {
			busy := rate / (like.grants * 1.1)
			p := result.Probe{
				Rate: round3(rate), DecisionsPerSecond: round3(math.Min(rate, like.grants*1.1)),
				P99: round3(like.grantP50 * 3 / math.Max(0.02, 1-busy)),
			}
			p.Kept = p.P99 <= c.P99Bound && busy < 1
			if p.Kept {
				low = rate
			} else {
				high = rate
			}
			c.Probes = append(c.Probes, p)
		}
		c.Rate = round3(low)
		r.Capacity = append(r.Capacity, c)
	}
	return r
}

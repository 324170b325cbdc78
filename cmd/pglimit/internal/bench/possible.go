package bench

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// possible is how many tokens a perfect limiter would grant, which decides each request at the moment it arrives. It is
// known for one key and one cost, if the arrivals are on a schedule. 0: it is not known.
//
// If requests are rare it is less than the limit allows: an available token waits for the next request.
func possible(s scenario.Scenario, subject scenario.Subject, seed uint64) (tokens int64) {
	if !s.Open() || s.Keys != 1 || subject.Limit.Calendar != "" || len(subject.Costs) != 1 {
		return 0
	}
	var arrivals []time.Duration
	for i := range s.Instances {
		for a := newSchedule(s, seed, i); ; {
			due, ok := a.arrival()
			if !ok {
				break
			}
			arrivals = append(arrivals, due)
		}
	}
	slices.Sort(arrivals)
	cost := subject.Costs[0].Tokens
	request := rate.Request{Limit: subject.Limit, Tokens: cost, Unit: cost}
	var b bucket.Row
	for _, now := range arrivals {
		if b.Grantable(now.Nanoseconds(), &request) > 0 {
			b = b.Take(now.Nanoseconds(), cost, subject.Limit)
			tokens += cost
		}
	}
	return tokens
}

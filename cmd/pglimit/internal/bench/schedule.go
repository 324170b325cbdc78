package bench

import (
	"math/rand/v2"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// schedule says when requests arrive at one instance. It counts how many arrivals are
// expected since the beginning, the area below the rate, and puts the next one where that
// count has grown by one (constant), or by a random amount that is one on average and has
// no memory (Poisson).
type schedule struct {
	phases []scenario.Phase
	share  float64    // of all arrivals
	random *rand.Rand // nil: constant

	begin time.Duration // of the phase that phases begin with
	done  float64       // arrivals expected before that
	next  float64       // arrivals expected before the next one
}

// newSchedule of one of several instances. Where arrivals are evenly spaced, those of the
// instances take turns.
func newSchedule(s scenario.Scenario, seed uint64, instance int) *schedule {
	a := &schedule{phases: s.Phases, share: 1 / float64(s.Instances)}
	if s.Arrivals == scenario.Constant {
		a.next = float64(instance) * a.share
	} else {
		a.random = rand.New(source(seed, streamArrivals, instance)) //nolint:gosec // a load, not a secret
	}
	return a
}

// arrival returns the time of the next one since the beginning, and false if there is none
// any more.
func (a *schedule) arrival() (due time.Duration, ok bool) {
	if a.random == nil {
		a.next++
	} else {
		a.next += a.random.ExpFloat64()
	}
	for len(a.phases) > 0 {
		p := a.phases[0]
		rate := p.Rate * a.share
		all := rate * p.Length.Seconds()
		if wanted := a.next - a.done; wanted < all {
			return a.begin + time.Duration(wanted/rate*float64(time.Second)), true
		}
		a.done += all
		a.begin += p.Length
		a.phases = a.phases[1:]
	}
	return 0, false
}

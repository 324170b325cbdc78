package bench

import (
	"math"
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
		from, to, length := p.From*a.share, p.To*a.share, p.Length.Seconds()
		all := (from + to) / 2 * length
		if wanted := a.next - a.done; wanted < all {
			return a.begin + time.Duration(timeOf(wanted, from, to, length)*float64(time.Second)), true
		}
		a.done += all
		a.begin += p.Length
		a.phases = a.phases[1:]
	}
	return 0, false
}

// timeOf is when a phase has seen that many arrivals: the root of from t + (to - from) t² / 2 length.
func timeOf(arrivals, from, to, length float64) float64 {
	slope := (to - from) / length
	return 2 * arrivals / (from + math.Sqrt(max(0, from*from+2*slope*arrivals)))
}

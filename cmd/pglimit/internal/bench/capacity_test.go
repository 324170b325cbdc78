package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// The search ends close to the highest rate, also where the sweep saw far less or more.
func TestCapacitySearchEndsAtTheHighestRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ begin, most, highest float64 }{
		{5000, 10_000, 8000}, {5000, 10_000, 9990}, {9000, 10_000, 500}, {1000, 2000, 17_000}, {5000, 10_000, 10_500},
	} {
		best, probes := 0.0, 0
		err := highestRate(c.begin, c.most, func(rate float64) (kept, goOn bool, err error) {
			probes++
			if kept = rate <= c.highest; kept {
				best = max(best, rate)
			}
			return kept, true, nil
		})
		if err != nil || best > c.highest || best < 0.9*c.highest || probes > maxProbes {
			t.Errorf("%+v: found %v with %d probes", c, best, probes)
		}
	}
	if err := highestRate(0, 0, func(float64) (kept, goOn bool, err error) {
		t.Error("nothing was decided in the sweep, and it probes")
		return false, false, nil
	}); err != nil {
		t.Error(err)
	}
}

// Fewer arrivals than expected are no fault of the strategy, nor are those of the last moment.
func TestCapacityCountsArrivals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		inTime, drained, failed int64
		bound                   time.Duration
		want                    bool
	}{
		{180, 0, 0, 10 * time.Millisecond, true},
		{170, 10, 0, 10 * time.Millisecond, false}, // 2 s, so 1 may be under way
		{170, 10, 0, 200 * time.Millisecond, true},
		{100, 100, 0, 10 * time.Second, false},
		{150, 0, 50, 10 * time.Millisecond, false},
		{0, 0, 0, 10 * time.Millisecond, true},
	} {
		run := result.Run{
			Seconds: 2, Decisions: c.inTime + c.drained, DecisionsPerSecond: float64(c.inTime) / 2,
			Errors: map[string]int64{kindUnserved: c.failed},
		}
		if got := served(run, c.bound); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

package bench

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// The search ends close to the highest rate, also where it begins far below or above it.
func TestCapacitySearchEndsAtTheHighestRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ begin, highest float64 }{{5000, 8000}, {5000, 9990}, {9000, 500}, {1000, 17_000}, {5000, 5000}, {100, 0}} {
		unlucky := map[float64]bool{} // each rate fails once
		found, err := highestRate(c.begin, func(rate float64) (kept bool, err error) {
			kept = rate <= c.highest && unlucky[rate]
			unlucky[rate] = true
			return kept, nil
		})
		if err != nil || found > c.highest || found < 0.9*c.highest {
			t.Errorf("%+v: found %v, %v", c, found, err)
		}
	}
	stop := errors.New("stop")
	found, err := highestRate(100, func(rate float64) (kept bool, err error) {
		if rate > 200 {
			return false, stop
		}
		return true, nil
	})
	if found != 200 || !errors.Is(err, stop) {
		t.Errorf("found %v, %v; want what was kept before it stopped", found, err)
	}
	if _, err := highestRate(scenario.MaxRPS/2, func(rate float64) (kept bool, err error) {
		if rate > scenario.MaxRPS {
			t.Errorf("it probes %v", rate)
		}
		return true, nil
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

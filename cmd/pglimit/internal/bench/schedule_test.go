package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// arrivals in each second of the schedule.
func perSecond(s *schedule, seconds int) []int {
	counts := make([]int, seconds+1)
	for due, ok := s.arrival(); ok; due, ok = s.arrival() {
		counts[min(int(due/time.Second), seconds)]++
	}
	return counts
}

// 100/s for 2 s, 300/s for 4 s, 500/s for a second.
func rising(instances int) scenario.Scenario {
	s := openScenario(1, 0)
	s.Instances = instances
	s.Phases = []scenario.Phase{{Rate: 100, Length: 2 * time.Second}, {Rate: 300, Length: 4 * time.Second}, {Rate: 500, Length: time.Second}}
	return s
}

func TestPhases(t *testing.T) {
	t.Parallel()
	got := perSecond(newSchedule(rising(1), 1, 0), 7)
	for i, want := range []int{100, 100, 300, 300, 300, 300, 500, 0} {
		if got[i] < want-1 || got[i] > want+1 {
			t.Errorf("second %d has %d arrivals, want %d; all: %v", i, got[i], want, got)
		}
	}
}

// Instances share the rate, and take turns.
func TestInstancesShareTheArrivals(t *testing.T) {
	t.Parallel()
	s := openScenario(1, 10)
	s.Instances = 2
	first, second := newSchedule(s, 1, 0), newSchedule(s, 1, 1)
	for i := range 4 {
		a, _ := first.arrival()
		b, _ := second.arrival()
		within(t, "the first's", a, time.Duration(i+1)*200*time.Millisecond-time.Microsecond, time.Duration(i+1)*200*time.Millisecond+time.Microsecond)
		within(t, "the second's", b, a+100*time.Millisecond-time.Microsecond, a+100*time.Millisecond+time.Microsecond)
	}
	all := 0
	for i := range 2 {
		for _, n := range perSecond(newSchedule(rising(2), 1, i), 7) {
			all += n
		}
	}
	if all < 1898 || all > 1902 {
		t.Errorf("%d arrivals of two instances, want 1,900", all)
	}
}

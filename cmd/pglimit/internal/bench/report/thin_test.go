package report

import (
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

// However many points are joined, nothing that was counted is lost and no worst is hidden.
func TestThinKeepsCountsAndWorst(t *testing.T) {
	t.Parallel()
	for _, run := range resulttest.WriteUp().Runs {
		for _, every := range []int{1, 2, 7, 50, 1000} {
			var counted interval
			var length, worst float64
			intervals := thin(run.Series, every)
			for _, i := range intervals {
				counted.Granted += i.Granted
				counted.Denied += i.Denied
				counted.Failed += i.Failed
				counted.RoundTrips += i.RoundTrips
				length += i.Length
				worst = max(worst, i.Denials.Max)
			}
			last := intervals[len(intervals)-1]
			if counted.Granted != run.Allowed || counted.Denied != run.Denied || counted.Failed != run.Failed() || counted.RoundTrips != run.RoundTrips {
				t.Errorf("%s, %d in one: counts are lost", run.Strategy, every)
			}
			if last.GrantedSoFar != run.Allowed || last.DeadlocksSoFar != *run.Deadlocks || last.Seconds != 600 || length < 599.9 || length > 600.1 {
				t.Errorf("%s, %d in one: the end is %+v after %v s", run.Strategy, every, last, length)
			}
			if worst != run.DenialLatency.Max {
				t.Errorf("%s, %d in one: the worst is %v, want %v", run.Strategy, every, worst, run.DenialLatency.Max)
			}
			if want := (len(run.Series) + every - 1) / every; len(intervals) != want {
				t.Errorf("%s, %d in one: %d intervals, want %d", run.Strategy, every, len(intervals), want)
			}
		}
	}
}

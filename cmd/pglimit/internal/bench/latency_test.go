package bench

import (
	"testing"
	"time"
)

// What is recorded is 1 % exact, and nothing is out of range.
func TestLatenciesOfAllSizes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ took, low, high time.Duration }{
		{0, 0, 200 * time.Nanosecond}, {-time.Second, 0, 200 * time.Nanosecond},
		{145 * time.Nanosecond, 100 * time.Nanosecond, 200 * time.Nanosecond},
		{time.Millisecond, 990 * time.Microsecond, 1010 * time.Microsecond},
		{time.Hour, 594 * time.Second, 606 * time.Second},
	} {
		h := newHistogram()
		record(h, []time.Duration{c.took})
		got := latencyOf(h)
		if got.Count != 1 {
			t.Errorf("%v is not recorded", c.took)
		}
		within(t, c.took.String(), time.Duration(got.Max*1000), c.low, c.high)
	}
}

// Of 10,000 latencies 1 in 10 is 2 ms, 1 in 100 is 4 ms, and so on.
func TestPercentiles(t *testing.T) {
	t.Parallel()
	h := newHistogram()
	for i := range 10_000 {
		took := time.Millisecond
		for _, fast := range []int{9000, 9900, 9990, 9999} {
			if i >= fast {
				took *= 2
			}
		}
		record(h, []time.Duration{took})
	}
	got := latencyOf(h)
	for _, c := range []struct {
		what string
		us   float64
		want time.Duration
	}{
		{"mean", got.Mean, 1125 * time.Microsecond}, {"p50", got.P50, time.Millisecond}, {"p90", got.P90, time.Millisecond},
		{"p99", got.P99, 2 * time.Millisecond}, {"p99.9", got.P999, 4 * time.Millisecond}, {"p99.99", got.P9999, 8 * time.Millisecond},
		{"max", got.Max, 16 * time.Millisecond},
	} {
		withinUS(t, c.what, c.us, c.want, c.want)
	}
	if none := latencyOf(newHistogram()); none.Count != 0 || none.Curve != nil {
		t.Errorf("%+v of no latency", none)
	}
}

package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
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
		var some tally
		some.grants.record(c.took)
		var all spread
		all.add(&some.grants)
		got := all.latency()
		if got.Count != 1 {
			t.Errorf("%v is not recorded", c.took)
		}
		within(t, c.took.String(), time.Duration(got.Max*1000), c.low, c.high)
	}
}

// Of 10,000 latencies 1 in 10 is 2 ms, 1 in 100 is 4 ms, and so on.
func TestPercentiles(t *testing.T) {
	t.Parallel()
	var some tally
	for i := range 10_000 {
		took := time.Millisecond
		for _, fast := range []int{9000, 9900, 9990, 9999} {
			if i >= fast {
				took *= 2
			}
		}
		some.grants.record(took)
	}
	var all spread
	all.add(&some.grants)
	got, point := all.latency(), all.point()
	for _, c := range []struct {
		what string
		us   float64
		want time.Duration
	}{
		{"mean", got.Mean, 1125 * time.Microsecond}, {"p50", got.P50, time.Millisecond}, {"p90", got.P90, time.Millisecond},
		{"p99", got.P99, 2 * time.Millisecond}, {"p99.9", got.P999, 4 * time.Millisecond}, {"p99.99", got.P9999, 8 * time.Millisecond},
		{"max", got.Max, 16 * time.Millisecond},
		{"mean of a point", point.Mean, 1125 * time.Microsecond}, {"p50 of a point", point.P50, time.Millisecond},
		{"p99 of a point", point.P99, 2 * time.Millisecond}, {"max of a point", point.Max, 16 * time.Millisecond},
	} {
		withinUS(t, c.what, c.us, c.want, c.want)
	}
	if none := (spread{}).point(); none != (result.PointLatency{}) {
		t.Errorf("%+v of no latency", none)
	}
}

// A caller that has few latencies and one that has many count alike, interval after interval.
func TestFewAndManyLatencies(t *testing.T) {
	t.Parallel()
	var l latencies
	var all spread
	want := int64(0)
	for _, n := range []int{few - 1, few, few + 1, 3, 10 * few, 0, 1} {
		for i := range n {
			l.record(time.Duration(i+1) * time.Millisecond)
		}
		all.add(&l)
		l.clear()
		want += int64(n)
	}
	if got := all.latency(); got.Count != want || got.Max < 630_000 || got.Max > 650_000 {
		t.Errorf("%d latencies up to %v µs, want %d up to 640,000", got.Count, got.Max, want)
	}
}

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
		record(&some.grants, c.took)
		var all counts
		all.add(some.grants)
		got := all.latency()
		if got.Count != 1 {
			t.Errorf("%v is not recorded", c.took)
		}
		within(t, c.took.String(), time.Duration(got.Max*1000), c.low, c.high)
	}
}

// 10,000 latencies of 1 to 100 ms, evenly.
func TestPercentiles(t *testing.T) {
	t.Parallel()
	var some tally
	for i := range 10_000 {
		record(&some.grants, time.Duration(i+1)*10*time.Microsecond)
	}
	var all counts
	all.add(some.grants)
	got, point := all.latency(), all.point()
	for _, c := range []struct {
		what string
		us   float64
		want time.Duration
	}{
		{"mean", got.Mean, 50 * time.Millisecond}, {"p50", got.P50, 50 * time.Millisecond}, {"p90", got.P90, 90 * time.Millisecond},
		{"p99", got.P99, 99 * time.Millisecond}, {"p99.9", got.P999, 99900 * time.Microsecond}, {"p99.99", got.P9999, 99990 * time.Microsecond},
		{"max", got.Max, 100 * time.Millisecond},
		{"mean of a point", point.Mean, 50 * time.Millisecond}, {"p50 of a point", point.P50, 50 * time.Millisecond},
		{"p99 of a point", point.P99, 99 * time.Millisecond}, {"max of a point", point.Max, 100 * time.Millisecond},
	} {
		withinUS(t, c.what, c.us, c.want, c.want)
	}
	if got.P999 > got.P9999 || got.P9999 > got.Max {
		t.Errorf("%v, %v, %v do not rise", got.P999, got.P9999, got.Max)
	}
	if none := counts(nil).point(); none != (result.PointLatency{}) {
		t.Errorf("%+v of no latency", none)
	}
}

func TestCurveEndsWhereItIsNotKnown(t *testing.T) {
	t.Parallel()
	h := newHistogram()
	for i := range int64(100) {
		_ = h.RecordValue((i + 1) * 1_000_000)
	}
	var all counts
	all.add(h)
	all.add(h)
	got := all.latency()
	if last := got.Curve[len(got.Curve)-1]; last.Percent != 99.5 || got.Count != 200 || got.P50 < 49_000 || got.P50 > 51_500 || got.Max < 99_000 {
		t.Errorf("%+v", got)
	}
	if none := counts(nil).latency(); none.Count != 0 || none.Curve != nil {
		t.Errorf("%+v", none)
	}
}

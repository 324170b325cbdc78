package bench

import (
	"testing"
	"testing/synctest"
	"time"
)

// Each answer is in the interval in which it came, with its latency, and what came after
// the end is in the last.
func TestSeriesAddsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openScenario(4, 1000)
		got := fakeDrive(t, c, stalling()).ran(t.Context(), 2*time.Second)
		if len(got.Series) != 20 || got.Interval() != 0.1 {
			t.Fatalf("%d points of %v s, want 20 of 0.1 s", len(got.Series), got.Interval())
		}
		var sum int64
		slow := 0
		for i, p := range got.Series {
			sum += p.Granted
			if stalled := p.Seconds > 0.55 && p.Seconds < 1.55; stalled && p.Granted > 0 {
				t.Errorf("point %d, to %v s: %d granted while the server stalled", i, p.Seconds, p.Granted)
			}
			if p.Grants.Max > 990_000 {
				slow++
			}
		}
		if sum != got.Allowed || sum == 0 || slow != 1 {
			t.Errorf("%d granted in the series, %d in all; %d intervals with a slow one, want 1", sum, got.Allowed, slow)
		}
	})
}

func TestWithoutASeriesTheSumsAreTheSame(t *testing.T) {
	t.Parallel()
	for _, series := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := bareScenario()
			c.Callers = 8
			d := fakeDrive(t, c, grantAfter(10*time.Millisecond))
			d.scenario.Phases[0].Length = time.Second
			d.measure(series)
			d.elapsed = d.run(t.Context())
			got := d.summarize(0)
			if got.Decisions != 800 || got.GrantLatency.Count != 800 || got.DecisionsPerSecond != 800 || len(got.Series) != 0 || got.Audit != nil {
				t.Errorf("series %v: %d decisions, %d latencies", series, got.Decisions, got.GrantLatency.Count)
			}
		})
	}
}

// The most that any key was granted in an interval never crosses the line, where the limit
// is kept; and it does where it is not.
func TestKeyGrantsBesideTheLimit(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(10_000)
	add(a, 0, granted, 0, 100, 200, 1000)
	add(b, 1, granted, 50, 60)
	add(b, 1, denied, 70, 1070)
	told := collectOne([]*history{a, b}, 2)
	got := told.keyGrants(time.Second)
	if got == nil || got.Bound != 12 || len(got.Most) != 2 || got.Most[0] != 3 || got.Most[1] != 1 || got.Busiest != "user:0" || got.Granted != 4 || got.Keys != 2 {
		t.Errorf("%+v", got)
	}
	if none := collectOne(nil, 1).keyGrants(time.Second); none != nil {
		t.Errorf("nothing was granted, and it is %+v", none)
	}
}

func TestIntervalsAreFewAndNotShort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		length  time.Duration
		callers int
		want    time.Duration
	}{
		{time.Second, 64, 100 * time.Millisecond}, {10 * time.Minute, 200, 5 * time.Second}, {time.Minute, 64, 500 * time.Millisecond}, {time.Minute, 2048, 5 * time.Second},
	} {
		if got := intervalFor(c.length, c.callers); got != c.want {
			t.Errorf("%v of %d callers: %v, want %v", c.length, c.callers, got, c.want)
		}
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

// A server that is asked twice as much as it can do answers for some time after the end. In
// the series that is as fast as before, and arrivals that were never sent failed when they
// were due.
func TestSeriesAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openScenario(1, 1000)
		got := fakeDrive(t, c, grantAfter(100*time.Millisecond)).ran(t.Context(), 2*time.Second)
		before, failed := 0.0, int64(0)
		for i, p := range got.Series {
			length := p.Seconds - before
			before = p.Seconds
			if rate := float64(p.Granted) / length; i > 1 && (rate < 8 || rate > 12) {
				t.Errorf("point %d: %v granted per second, want 10", i, rate)
			}
			if failed += p.Failed; i+1 == len(got.Series) && float64(p.Failed) > 0.2*float64(failed) {
				t.Errorf("of %d that failed %d did so in the last interval", failed, p.Failed)
			}
		}
		if before < 6 || before > 8 || failed != got.Failed() {
			t.Errorf("the series ends after %v s with %d failed of %d", before, failed, got.Failed())
		}
	})
}

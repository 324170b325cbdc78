package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// alternating fails at once, grants after 10 ms, denies after 20, is contended after 30, and
// begins again.
func alternating() fake {
	calls := 0
	return fake{name: "alternating", take: func(_ context.Context, r pglimit.Request) (pglimit.Decision, error) {
		turn := calls % 4
		calls++
		time.Sleep(time.Duration(turn) * 10 * time.Millisecond)
		switch turn {
		case 1:
			return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
		case 2:
			return pglimit.Decision{At: time.Now()}, nil
		case 3:
			return pglimit.Decision{Contended: true, At: time.Now()}, nil
		}
		return pglimit.Decision{}, &pgconn.PgError{Code: "40P01", Message: "deadlock"}
	}}
}

// Grants, denials and failures are told apart, in all and over time.
func TestSummaryTellsAnswersApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers, c.Keys, c.Limit = 1, 1, pglimit.PerSecond(1000)
		c.Costs = []scenario.Cost{{Tokens: 5, Share: 1}}
		d := fakeDrive(t, c, alternating())
		d.scenario.Phases[0].Length = 600 * time.Millisecond
		d.measure(true)
		d.elapsed = d.run(t.Context())
		d.samples = make([]sample, 7)
		for i := range d.samples {
			d.samples[i] = sample{trips: int64(i * i), known: i != 3, position: position{wal: int64(100 * i)}}
		}
		got := d.summarize(DefaultAudit)
		if got.Allowed != 10 || got.Granted != 50 || got.Denied != 20 || got.Contended != 10 || got.Decisions != 30 || got.Errors["40P01 deadlock_detected"] != 10 {
			t.Errorf("%d allowed (%d tokens), %d denied, %d contended, %d decisions, errors %v", got.Allowed, got.Granted, got.Denied, got.Contended, got.Decisions, got.Errors)
		}
		if got.Cost != 5 || got.Adapted || got.Seconds != 0.6 || got.Strategy != "alternating" || got.Limit != "1000/1s" || got.Scenario != "custom" {
			t.Errorf("%+v", got)
		}
		withinUS(t, "the median of grants", got.GrantLatency.P50, 10*time.Millisecond, 10*time.Millisecond)
		withinUS(t, "the median of denials", got.DenialLatency.P50, 20*time.Millisecond, 20*time.Millisecond)
		withinUS(t, "the slowest denial", got.DenialLatency.Max, 30*time.Millisecond, 30*time.Millisecond)
		withinUS(t, "the median of all", got.Latency.P50, 20*time.Millisecond, 20*time.Millisecond)
		if got.Latency.Count != 30 || got.GrantLatency.Count != 10 || got.Latency.Curve != nil || got.GrantLatency.Curve == nil {
			t.Errorf("%d latencies, %d of grants", got.Latency.Count, got.GrantLatency.Count)
		}
		var granted, denied, contended, failed int64
		for i, p := range got.Series {
			granted, denied, contended, failed = granted+p.Granted, denied+p.Denied, contended+p.Contended, failed+p.Failed
			if want := int64(2*i + 1); p.RoundTrips != want {
				t.Errorf("point %d has %d trips, want %d", i, p.RoundTrips, want)
			}
			if unknown := i == 2 || i == 3; (p.WALBytes == nil) != unknown || !unknown && *p.WALBytes != 100 {
				t.Errorf("point %d has %v bytes, want 100, or none beside the sample that is unknown", i, p.WALBytes)
			}
		}
		if len(got.Series) != 6 || granted != 10 || denied != 20 || contended != 10 || failed != 10 {
			t.Errorf("%d points with %d, %d, %d, %d; want 6 with 10 granted, 20 denied, 10 contended, 10 failed", len(got.Series), granted, denied, contended, failed)
		}
		if got.KeyGrants == nil || got.KeyGrants.Granted != 50 || got.KeyGrants.Interval != 0.1 {
			t.Errorf("%+v, want 50 tokens in intervals as those of the series", got.KeyGrants)
		}
	})
}

// The audit is against the limit that the strategy ran under.
func TestAuditIsOfTheAdaptedLimit(t *testing.T) {
	t.Parallel()
	single := grantAfter(0)
	single.check = func(l pglimit.Limit) error {
		if l.Burst > 1 {
			return errors.New("a burst")
		}
		return nil
	}
	d := fakeDrive(t, bareScenario(), single) // 20/1s
	add(&d.recorders[0].history, 0, granted, 0, 50, 99)
	d.elapsed = time.Second
	got := d.summarize(DefaultAudit)
	if got.Audit.OverTokens != 1 || !got.Adapted || got.Limit != "20/1s burst 1" {
		t.Errorf("over by %d under %s, adapted: %v; want 1, 20/1s burst 1", got.Audit.OverTokens, got.Limit, got.Adapted)
	}
}

// Of calls that take 300 ms, each of 8 callers has three answers within the second. The
// fourth is a decision, and no part of any rate.
func TestLateAnswersAreInNoRate(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"grants": true, "denials": false} {
		synctest.Test(t, func(t *testing.T) {
			slow := fake{name: "slow", take: func(_ context.Context, r pglimit.Request) (pglimit.Decision, error) {
				time.Sleep(300 * time.Millisecond)
				d := pglimit.Decision{Allowed: allowed, At: time.Now()}
				if allowed {
					d.Granted = r.Tokens
				}
				return d, nil
			}}
			c := bareScenario()
			c.Callers = 8
			got := fakeDrive(t, c, slow).ran(t.Context(), time.Second)
			want := map[bool]float64{true: 24}
			if got.Decisions != 32 || got.DecisionsPerSecond != 24 || got.GrantsPerSecond != want[allowed] || got.DenialsPerSecond != want[!allowed] {
				t.Errorf("%s: %d decisions, %v/s, %v grants/s, %v denials/s", name, got.Decisions, got.DecisionsPerSecond, got.GrantsPerSecond, got.DenialsPerSecond)
			}
		})
	}
}

// A series of an interrupted run ends then, and its last point is as short as it was.
func TestSeriesOfAnInterruptedRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers = 1
		ctx, interrupt := context.WithCancel(t.Context())
		defer time.AfterFunc(255*time.Millisecond, interrupt).Stop()
		got := fakeDrive(t, c, grantAfter(10*time.Millisecond)).ran(ctx, time.Second)
		if len(got.Series) != 3 || got.Series[2].Seconds < 0.25 || got.Series[2].Seconds > 0.27 || got.Series[1].Seconds != 0.2 {
			t.Errorf("%+v, want points at 0.1, 0.2 and 0.26 s", got.Series)
		}
	})
}

// A length that is no multiple of the interval has a last point that is shorter.
func TestSeriesEndsWithTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers = 1
		got := fakeDrive(t, c, grantAfter(10*time.Millisecond)).ran(t.Context(), 250*time.Millisecond)
		var seconds []float64
		for _, p := range got.Series {
			seconds = append(seconds, p.Seconds)
		}
		if !slices.Equal(seconds, []float64{0.1, 0.2, 0.25}) {
			t.Errorf("points at %v, want 0.1, 0.2, 0.25", seconds)
		}
	})
}

// Each caller's figures reach the timeline in the interval in which they were made, with
// their first error.
func TestTimelineAddsUpCallers(t *testing.T) {
	t.Parallel()
	line := newTimeline(time.Second, 2, true)
	first, second := newRecorder(newBudget(0, 1)), newRecorder(newBudget(0, 1))
	for _, r := range []*recorder{first, second} {
		r.timeline = line
		r.begin(window{until: time.Second})
	}
	at := func(ms time.Duration) time.Duration { return ms * time.Millisecond }
	first.decision(0, 0, &pglimit.Decision{Allowed: true, Granted: 3}, at(1), at(50), true)
	first.failure(0, errors.New("one"), at(1), at(60))
	second.decision(0, 0, &pglimit.Decision{Allowed: true, Granted: 4}, at(1), at(99), true)
	second.decision(0, 0, &pglimit.Decision{Contended: true}, at(1), at(100), true)
	second.failure(0, errors.New("two"), at(1), at(100))
	second.failure(0, errors.New("three"), at(1), at(150))
	first.decision(0, 0, &pglimit.Decision{}, at(7), at(1500), false)
	if before := line.decisions(); before != 2 { // what was not handed over is not known yet
		t.Errorf("%d decisions so far, want those of the intervals that are over", before)
	}
	first.finish()
	second.finish()
	if line.decisions() != 4 {
		t.Errorf("%d decisions, want 4", line.decisions())
	}
	for i, want := range []struct{ granted, tokens, denied, contended, failed int64 }{0: {2, 7, 0, 0, 1}, 1: {0, 0, 1, 1, 2}, 9: {0, 0, 1, 0, 0}} {
		s := &line.slots[i]
		if s.granted != want.granted || s.tokens != want.tokens || s.denied != want.denied || s.contended != want.contended || s.failed() != want.failed {
			t.Errorf("interval %d: %+v, %d failed; want %+v", i, s.answered, s.failed(), want)
		}
	}
	total := line.total()
	if total.granted != 2 || total.tokens != 7 || total.denied != 2 || total.contended != 1 || total.grantedInTime != 2 || total.deniedIn != 1 {
		t.Errorf("%+v", total.answered)
	}
	if f := total.errors[kindOther]; f.count != 3 || f.first != "one" {
		t.Errorf("%d failures, the first %q; want 3, one", f.count, f.first)
	}
}

func TestSlotsOfATimeline(t *testing.T) {
	t.Parallel()
	line := newTimeline(250*time.Millisecond, 1, true)
	for _, c := range []struct {
		at     time.Duration
		number int
		end    time.Duration
	}{
		{-1, 0, 100 * time.Millisecond},
		{0, 0, 100 * time.Millisecond}, {100*time.Millisecond - 1, 0, 100 * time.Millisecond},
		{100 * time.Millisecond, 1, 200 * time.Millisecond}, {200 * time.Millisecond, 2, forever}, {time.Hour, 2, forever},
	} {
		if number, end := line.slot(c.at); number != c.number || end != c.end {
			t.Errorf("%v is in interval %d until %v, want %d until %v", c.at, number, end, c.number, c.end)
		}
	}
}

// A grant without a time cannot be audited, and may be why others are denied. A denial
// without one is not audited, and excuses nothing.
func TestAnswersWithoutATime(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{true, false} {
		r := newRecorder(newBudget(100, 1))
		add(&r.history, 0, granted, 0)
		r.decision(0, 0, &pglimit.Decision{Allowed: allowed}, 0, 0, true)
		add(&r.history, 0, denied, 150)
		got := judge([]*history{&r.history}, 1, pglimit.Every(100*time.Millisecond))
		if lost := got.KeysWithLostAnswers == 1; lost != allowed || got.DenialsNotDue != map[bool]int64{true: 0, false: 1}[allowed] || got.Audited != 2 {
			t.Errorf("allowed: %v: %+v", allowed, got)
		}
	}
}

// A request that may have been granted is lost to the audit; one that was refused is not.
func TestFailuresThatMayHaveTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		lost bool
	}{
		"timeout":    {context.DeadlineExceeded, true},
		"deadlock":   {&pgconn.PgError{Code: "40P01"}, false},
		"shut down":  {&pgconn.PgError{Code: "57P01"}, true},
		"overloaded": {pglimit.ErrOverloaded, false},
		"who knows":  {errors.New("what"), true},
	} {
		r := newRecorder(newBudget(100, 1))
		r.failure(3, c.err, 0, 0)
		if _, lost := r.history.lost[3]; lost != c.lost {
			t.Errorf("%s: lost: %v", name, lost)
		}
	}
}

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

package audit_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

const (
	millisecond = 1_000_000
	second      = 1_000_000_000
)

// start of the histories below, in nanoseconds since 1970.
var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()

func grant(at, n int64) audit.Event {
	return audit.Event{At: start + at, Wanted: n, Unit: n, Granted: n}
}

func deny(at, n int64) audit.Event {
	return audit.Event{At: start + at, Wanted: n, Unit: n}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	tenPerSecond := rate.PerSecond(10)
	for _, test := range []struct {
		name   string
		limit  rate.Limit
		events []audit.Event
		over   int64
		notDue int64
	}{
		{name: "nothing happened", limit: tenPerSecond},
		{name: "the burst, then the rate", limit: tenPerSecond,
			events: []audit.Event{grant(0, 10), deny(0, 1), deny(100*millisecond-1, 1), grant(100*millisecond, 1), deny(100*millisecond+1, 1)}},
		{name: "one beyond the burst", limit: tenPerSecond,
			events: []audit.Event{grant(0, 10), grant(100*millisecond-1, 1)}, over: 1},
		{name: "a little each second adds up", limit: tenPerSecond,
			events: []audit.Event{grant(0, 10), grant(second, 11), grant(2*second, 11), grant(3*second, 11)}, over: 3},
		{name: "a quiet time forgives", limit: tenPerSecond,
			events: []audit.Event{grant(0, 12), grant(10*second, 11)}, over: 2},
		{name: "a quiet time does not save up", limit: tenPerSecond,
			events: []audit.Event{grant(0, 1), grant(100*second, 10), grant(100*second+1, 1)}, over: 1},
		{name: "denied just when it is due", limit: tenPerSecond,
			events: []audit.Event{grant(0, 10), deny(100*millisecond, 1)}, notDue: 1},
		{name: "denied from a full bucket", limit: tenPerSecond,
			events: []audit.Event{deny(0, 10)}, notDue: 1},
		{name: "more than the burst is never due", limit: tenPerSecond,
			events: []audit.Event{deny(0, 11)}},
		{name: "a third of a second is not whole nanoseconds", limit: rate.PerSecond(3).WithBurst(1),
			events: []audit.Event{grant(0, 1), deny(333_333_333, 1), grant(333_333_334, 1), deny(666_666_667, 1), grant(666_666_668, 1)}},
		{name: "a third of a second, one too early", limit: rate.PerSecond(3).WithBurst(1),
			events: []audit.Event{grant(0, 1), grant(333_333_333, 1)}, over: 1},
		{name: "grants of the same moment excuse a denial", limit: rate.Every(time.Minute),
			events: []audit.Event{deny(7, 1), grant(7, 1)}},
		{name: "later grants do not", limit: rate.Every(time.Minute),
			events: []audit.Event{deny(7, 1), grant(8, 1)}, notDue: 1},
		{name: "too many at the same moment", limit: rate.Every(time.Minute),
			events: []audit.Event{grant(7, 1), grant(7, 1)}, over: 1},
		{name: "as much as there is", limit: tenPerSecond,
			events: []audit.Event{{At: start, Wanted: 100, Unit: 3, Granted: 9}}},
		{name: "one unit less than there is", limit: tenPerSecond,
			events: []audit.Event{{At: start, Wanted: 100, Unit: 3, Granted: 6}}, notDue: 1},
		{name: "less than a unit was left to want", limit: tenPerSecond,
			events: []audit.Event{{At: start, Wanted: 8, Unit: 3, Granted: 6}}},
		{name: "without a unit it is one", limit: tenPerSecond,
			events: []audit.Event{{At: start, Wanted: 1}}, notDue: 1},
		{name: "before 1970", limit: tenPerSecond,
			events: []audit.Event{grant(-2*start, 10), grant(-2*start+1, 1), deny(-3*start/2, 1)}, over: 1, notDue: 1},
		{name: "contended is excused", limit: tenPerSecond,
			events: []audit.Event{{At: start, Wanted: 1, Unit: 1, Contended: true}}},
		{name: "a billion per second", limit: rate.PerSecond(rate.MaxRate).WithBurst(1000),
			events: []audit.Event{grant(0, 1000), grant(1000, 1000), deny(1000, 1), grant(2000, 1001)}, over: 1},
		{name: "one per year", limit: rate.Every(365 * 24 * time.Hour),
			events: []audit.Event{grant(0, 1), deny(365*24*3600*second-1, 1), grant(365*24*3600*second, 1)}},
		{name: "one per year, a nanosecond early", limit: rate.Every(365 * 24 * time.Hour),
			events: []audit.Event{grant(0, 1), grant(365*24*3600*second-1, 1)}, over: 1},
		{name: "a clock that was read before the lock credits a second twice", limit: rate.PerSecond(1),
			events: []audit.Event{grant(0, 1), grant(10*second, 1), grant(9*second, 1), grant(10*second+1, 1)}, over: 1},
		{name: "all times that there are", limit: rate.Every(365 * 24 * time.Hour).WithBurst(1),
			events: []audit.Event{grant(math.MinInt64-start, 600), grant(math.MaxInt64-start, 1)}, over: 599},
		{name: "more than can be counted", limit: rate.Every(time.Hour),
			events: slices.Repeat([]audit.Event{grant(0, math.MaxInt64)}, 20), over: math.MaxInt64},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, events := range [][]audit.Event{test.events, backwards(test.events)} {
				report := audit.Check(nil, test.limit, events)
				if report.Over.Tokens != test.over || report.NotDueTotal != test.notDue {
					t.Errorf("want %d over and %d not due, got: %v", test.over, test.notDue, report)
				}
				if ok := test.over == 0 && test.notDue == 0; report.OK() != ok {
					t.Errorf("OK is %t", report.OK())
				}
			}
		})
	}
}

func backwards(events []audit.Event) []audit.Event {
	events = slices.Clone(events)
	slices.Reverse(events)
	return events
}

// In each window of a calendar there are at most so many grants as a burst, and twice as many around its end.
func TestWindowsOfACalendar(t *testing.T) {
	t.Parallel()
	hourly := rate.PerHour(5).Fixed()
	ends, err := hourly.WindowEnd(time.Unix(0, start))
	if err != nil {
		t.Fatal(err)
	}
	end := ends.UnixNano() - start
	kept := []audit.Event{grant(end-2, 3), grant(end-1, 2), deny(end-1, 1), grant(end, 5), deny(end, 1)}
	if report := audit.Check(nil, hourly, kept); !report.OK() || report.Denials != 2 {
		t.Error(report)
	}
	if report := audit.Check(nil, hourly, append(kept, grant(end+int64(time.Hour)-1, 2))); report.Over.Tokens != 2 {
		t.Error(report)
	}
	if report := audit.Check(nil, hourly, append(kept, deny(end+int64(time.Hour), 4))); report.OK() || report.Over.Tokens != 0 {
		t.Error(report)
	}
	for _, beside := range []rate.Limit{rate.PerHour(5), rate.PerDay(5).Fixed(), {}} {
		if report := audit.Check(nil, hourly, kept, beside); report.Err == nil {
			t.Errorf("beside %v: %v", beside, report)
		}
	}
	if report := audit.Check(nil, hourly.In("Europe/Nowhere"), kept); report.Err == nil {
		t.Error("a zone that is none")
	}
}

func TestTheWorstSpanIsNamed(t *testing.T) {
	t.Parallel()
	report := audit.Check(nil, rate.PerSecond(10), []audit.Event{
		grant(0, 10), grant(5*second, 11), // a little over
		grant(20*second, 10), grant(20*second+500*millisecond, 10), // 5 over
		grant(40*second, 12),
		grant(60*second, 15), // as bad, but later
	})
	want := audit.Over{
		Tokens:  5,
		Granted: 20,
		From:    time.Unix(0, start+20*second).UTC(),
		To:      time.Unix(0, start+20*second+500*millisecond).UTC(),
	}
	if report.Over != want {
		t.Errorf("%+v", report.Over)
	}
}

func TestDenialsThatWereNotDueAreListedMostBelatedFirst(t *testing.T) {
	t.Parallel()
	events := []audit.Event{grant(0, 10)}
	for i := range int64(50) {
		events = append(events, deny(100*millisecond+i, 1))
	}
	report := audit.Check(nil, rate.PerSecond(10), events)
	if report.NotDueTotal != 50 || len(report.NotDue) != audit.MaxListed {
		t.Fatal(report)
	}
	for i, d := range report.NotDue {
		late := int64(49 - i)
		want := audit.Denial{At: time.Unix(0, start+100*millisecond+late).UTC(), Unit: 1, Free: 1, Late: time.Duration(late)}
		if d != want {
			t.Errorf("%d: %+v, want %+v", i, d, want)
		}
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	report := audit.Check(nil, rate.PerSecond(10), []audit.Event{
		grant(0, 4), grant(0, 3),
		{At: start, Wanted: 9, Unit: 1, Granted: 3}, // in part
		deny(0, 1), //
		{At: start, Wanted: 1, Unit: 1, Contended: true},        //
		{At: start, Unit: 1},                                    // a peek that found tokens
		{At: start, Wanted: 1, Unit: 1, Granted: -1 << 63},      // nonsense is a denial
		{At: start, Wanted: -1, Unit: -1, Contended: true},      // and this is nothing
		{At: start, Wanted: 0, Unit: math.MaxInt64},             //
		{At: start, Wanted: math.MinInt64, Unit: 1 << 62},       //
		{At: start, Wanted: math.MaxInt64, Unit: math.MaxInt64}, // more than the burst
	})
	if report.Grants != 3 || report.Granted != 10 || report.Denials != 4 || report.Contended != 1 || !report.OK() {
		t.Errorf("%+v", report)
	}
}

func TestFromDecision(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, start)
	for name, test := range map[string]struct {
		request  rate.Request
		decision rate.Decision
		want     audit.Event
	}{
		"granted": {
			rate.Request{Tokens: 6, Unit: 2},
			rate.Decision{Allowed: true, Granted: 4, At: at},
			audit.Event{At: start, Wanted: 6, Unit: 2, Granted: 4},
		},
		"contended": {
			rate.Request{Tokens: 1, Unit: 1},
			rate.Decision{Contended: true, At: at},
			audit.Event{At: start, Wanted: 1, Unit: 1, Contended: true},
		},
		"a peek that finds what it looks for": {
			rate.Request{Unit: 3},
			rate.Decision{Allowed: true, Remaining: 3, At: at},
			audit.Event{At: start, Unit: 3},
		},
		"a peek that does not": {
			rate.Request{Unit: 3},
			rate.Decision{Remaining: 2, At: at},
			audit.Event{At: start, Wanted: 3, Unit: 3},
		},
		"a peek without a unit": {
			rate.Request{},
			rate.Decision{At: at},
			audit.Event{At: start, Wanted: 1},
		},
	} {
		if got := audit.FromDecision(test.request.Tokens, test.request.Unit, test.decision); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestAnInvalidLimitIsNotChecked(t *testing.T) {
	t.Parallel()
	var histories audit.Histories
	histories.Add("a", grant(0, 1))
	var empty audit.Histories
	for _, report := range []audit.Report{
		audit.Check(nil, rate.Limit{}, []audit.Event{grant(0, 1)}),
		histories.Check(nil, rate.Limit{}),
		empty.Check(nil, rate.Limit{}),
		histories.Check(nil, rate.Every(time.Hour), rate.Limit{}), // beside a valid one
	} {
		var limit *rate.LimitError
		if report.OK() || !errors.As(report.Err, &limit) {
			t.Errorf("%+v", report)
		}
	}
}

package audit_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// A unit granted where it was refused, or, where none was, a whole bucket and a
// token once more.
func TestAnExtraGrantIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := limits.Draw(t, "limit")
		events := exact(t, limit, 0)
		e := &events[rapid.IntRange(0, len(events)-1).Draw(t, "extra")]
		if e.Granted <= e.Wanted-e.Unit {
			e.Granted += e.Unit
		} else {
			more := limit.Burst + 1
			events = append(events, audit.Event{At: e.At, Wanted: more, Unit: more, Granted: more})
		}
		over := audit.Check(nil, limit, events).Over
		if over.Tokens < 1 {
			t.Fatalf("%v: what was granted too much at %d was not found", limit, e.At)
		}
		if want := worstExcess(limit, events); over.Tokens != want {
			t.Fatalf("%v: %v; brute force finds %d", limit, over, want)
		}
	})
}

// With a nanosecond between any two events there is no doubt whose benefit a
// denial could have.
func TestADenialThatWasNotDueIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := limits.Draw(t, "limit")
		events := exact(t, limit, 1)
		e := &events[rapid.IntRange(0, len(events)-1).Draw(t, "denied")]
		if e.Granted == 0 {
			t.Skip("a denial already")
		}
		e.Granted -= e.Unit
		report := audit.Check(nil, limit, events)
		if report.NotDueTotal < 1 {
			t.Fatalf("%v: the unit of %d withheld at %d was not found", limit, e.Unit, e.At)
		}
		if want := notDue(limit, events); report.NotDueTotal != want {
			t.Fatalf("%v: %v; brute force finds %d", limit, report, want)
		}
		if report.Over.Tokens != 0 {
			t.Fatalf("%v: fewer grants, and yet %v", limit, report)
		}
	})
}

// It holds for any history whatever, also for what no bucket would
// do, with numbers up to the largest there are.
func TestAnyHistoryAgreesWithBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := limits.Draw(t, "limit")
		anyTime := rapid.OneOf(
			rapid.Int64Range(began, began+10),
			rapid.Map(gaps(limit, 0), func(gap int64) int64 { return began + gap }),
			rapid.Int64(),
		)
		anyTokens := rapid.OneOf(
			rapid.Int64Range(1, 5),
			rapid.Int64Range(1, limit.Burst),
			rapid.Int64Range(1, math.MaxInt64/2),
		)
		events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) audit.Event {
			e := audit.Event{At: anyTime.Draw(t, "at"), Unit: anyTokens.Draw(t, "unit")}
			e.Wanted = e.Unit
			if rapid.Bool().Draw(t, "granted") {
				e.Granted = e.Unit
			} else {
				e.Contended = rapid.Bool().Draw(t, "contended")
			}
			return e
		}), 1, 20).Draw(t, "events")

		report := audit.Check(nil, limit, events)
		if want := worstExcess(limit, events); report.Over.Tokens != want {
			t.Fatalf("%v: over by %d, brute force finds %d", limit, report.Over.Tokens, want)
		}
		if want := notDue(limit, events); report.NotDueTotal != want {
			t.Fatalf("%v: %d not due, brute force finds %d", limit, report.NotDueTotal, want)
		}
		if over := report.Over; over.Tokens > 0 {
			if there := roundedUp(excess(limit, events, over.From.UnixNano(), over.To.UnixNano())); there != over.Tokens {
				t.Fatalf("%v: says %v, but in that span it is %d", limit, over, there)
			}
		}
		for _, d := range report.NotDue {
			if d.Unit > d.Free {
				t.Fatalf("%v: says %v, and yet was not due", limit, d)
			}
			// The tokens were there that much earlier already: then it was not due either.
			earlier := audit.Event{At: d.At.Add(-d.Late).UnixNano(), Wanted: d.Unit, Unit: d.Unit}
			if d.Late > 0 && earlier.At < d.At.UnixNano() && audit.Check(nil, limit, append(grantsOf(events), earlier)).NotDueTotal != 1 {
				t.Fatalf("%v: says %v, which is too long", limit, d)
			}
		}
		_ = report.String() // must not panic
	})
}

func grantsOf(events []audit.Event) (grants []audit.Event) {
	for _, e := range events {
		if e.Granted > 0 {
			grants = append(grants, e)
		}
	}
	return grants
}

// Any field may hold anything: no panic, and nothing is found that is negative.
func FuzzCheck(f *testing.F) {
	f.Add(int64(3), int64(1_000_000_000), int64(5), int64(math.MinInt64), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Add(int64(0), int64(0), int64(0), int64(0), int64(-1), int64(1))
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), int64(-1), int64(7), int64(math.MinInt64), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, limitTokens, period, burst, a, b, c int64) {
		limit := rate.Limit{Tokens: limitTokens, Period: time.Duration(period), Burst: burst}
		var events []audit.Event
		for _, p := range [][4]int64{{a, b, c, c}, {b, c, a, a}, {c, a, b, 0}, {a, c, c, b}, {b, b, 1, 0}, {a, c, 1, c}} {
			events = append(events, audit.Event{At: p[0], Wanted: p[1], Unit: p[2], Granted: p[3]})
		}
		report := audit.Check(nil, limit, events)
		if report.OK() != (report.Err == nil && report.Over.Tokens == 0 && report.NotDueTotal == 0) ||
			report.Over.Tokens < 0 || report.Granted < 0 || report.Over.To.Before(report.Over.From) || len(report.String()) == 0 {
			t.Fatalf("%v: %+v", limit, report)
		}
		if (report.Err == nil) != (limit.Validate() == nil) {
			t.Fatalf("%+v: %v", limit, report.Err)
		}
	})
}

// Limits side by side are as one that has the shortest price and the largest burst.
func TestLimitsSideBySideAgreeWithBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := []rate.Limit{limits.Draw(t, "limit"), limits.Draw(t, "another"), limits.Draw(t, "a third")}
		loosest := rate.Limit{Tokens: 1, Period: math.MaxInt64}
		for _, limit := range all {
			loosest.Period = min(loosest.Period, time.Duration(price(limit)))
			loosest.Burst = max(loosest.Burst, limit.Burst)
		}
		var events []audit.Event
		for _, limit := range all { // together they may be too much
			events = append(events, exact(t, limit, 0)...)
		}
		report := audit.Check(nil, all[0], events, all[1:]...)
		if want := worstExcess(loosest, events); report.Over.Tokens != want || report.NotDueTotal != 0 {
			t.Fatalf("%v; brute force finds %d tokens over", report, want)
		}
	})
}

// However the decisions of many buckets are spread over goroutines, and in whatever
// order those are merged, the report is that of each bucket by itself.
func TestMergedHistoriesSayTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := limits.Draw(t, "limit")
		var workers [3]audit.Histories
		var want audit.Report
		for _, bucket := range []string{"a", "b", "c"} {
			events := exact(t, limit, 0)
			for range rapid.IntRange(0, 2).Draw(t, "faults") {
				e := &events[rapid.IntRange(0, len(events)-1).Draw(t, "fault")]
				e.Granted = rapid.SampledFrom([]int64{0, e.Wanted}).Draw(t, "granted instead")
			}
			var one audit.Histories
			for _, e := range events {
				one.Add(bucket, e)
				workers[rapid.IntRange(0, len(workers)-1).Draw(t, "worker")].Add(bucket, e)
			}
			want.Add(one.Check(nil, limit))
		}
		var all audit.Histories
		for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(t, "merged") {
			all.Merge(&workers[i])
		}
		if got := all.Check(nil, limit); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v:\nmerged: %v\none by one: %v", limit, got, want)
		}
	})
}

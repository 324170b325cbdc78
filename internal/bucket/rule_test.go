package bucket

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// What a decision says of another request, later, and with tokens that others have got given back, is what
// the model decides then.
func TestWhatADecisionSaysOfLaterRequests(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t, "limit")
		l := modelled(limit)
		tokens := func(name string) int64 {
			return rapid.OneOf(rapid.Int64Range(1, min(3, l.Burst)), rapid.Int64Range(1, l.Burst)).Draw(t, name)
		}
		// It may owe more than a burst, that was reserved.
		m := model.Bucket{Exists: true, Full: nowNS + rapid.Int64Range(0, l.Window()+l.Window()/3).Draw(t, "owed"), Token: l.Token, At: nowNS}
		unit, n, more := tokens("unit"), tokens("n"), rapid.SampledFrom([]int64{0, 0, 1, tokens("more")}).Draw(t, "more tokens")
		told := m.Report(nowNS, l, unit)
		d := rate.Decision{
			Remaining: told.Remaining, RetryAfter: micros(told.RetryAfter), ResetAfter: micros(told.ResetAfter),
			Delay: time.Duration(max(0, m.Full-nowNS-l.Window())), At: time.Unix(0, nowNS), Limit: limit,
		}
		passed := time.Duration(rapid.SampledFrom([]int64{0, l.Token / 2, l.Token, l.Window() / 2, l.Window()}).Draw(t, "passed"))

		later, now := m, nowNS+int64(passed)
		later.Full -= more * l.Token
		want := later.Report(now, l, n)
		got := Rule{}.Later(d, unit, n, passed, more)
		near := func(got, want time.Duration) bool { return got >= want && got < want+time.Microsecond }
		if !near(got.RetryAfter, want.RetryAfter) && got.Remaining < n || !near(got.ResetAfter, want.ResetAfter) || !got.At.Equal(time.Unix(0, now)) {
			t.Fatalf("%+v, want %+v", got, want)
		}
		// Times are rounded to microseconds, so a few tokens that come back within one may not be counted.
		few := int64(time.Microsecond)/l.Token + 1
		if passed == 0 {
			few = 0
		}
		if got.Remaining > want.Remaining || got.Remaining < want.Remaining-few {
			t.Fatalf("%d remain, want %d", got.Remaining, want.Remaining)
		}
		if delay := max(0, d.Delay-passed-time.Duration(more*l.Token)); got.Delay != delay {
			t.Fatalf("due after %v, want %v", got.Delay, delay)
		}
		if n != unit && (Rule{}).Denies(d, unit, n, passed) && m.Report(now-1000, l, n).RetryAfter == 0 {
			t.Fatalf("%+v denies %d after %v, and they are there", d, n, passed)
		}
		if n > unit && passed < d.RetryAfter && !(Rule{}).Denies(d, unit, n, passed) {
			t.Fatalf("%+v does not deny %d after %v", d, n, passed)
		}
	})
}

// Of a bucket that a part is leased of, a decision says too little: what it denies to another request is denied, and
// comes back then, give or take a token.
func TestWhatADecisionSaysWhileTokensAreLeased(t *testing.T) {
	t.Parallel()
	denied := 0
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t, "limit")
		l := modelled(limit)
		tokens := func(name string) int64 {
			return rapid.OneOf(rapid.Int64Range(1, min(3, l.Burst)), rapid.Int64Range(1, l.Burst)).Draw(t, name)
		}
		leased := tokens("leased") * l.Token
		m := model.Bucket{
			Exists: true, Full: nowNS + rapid.Int64Range(0, l.Window()-leased).Draw(t, "owed"), Token: l.Token, At: nowNS,
			Leased: leased, Until: nowNS + rapid.Int64Range(1, 2*l.Window()).Draw(t, "until"),
		}
		unit, n := tokens("unit"), tokens("n")
		told := m.Report(nowNS, l, unit)
		d := rate.Decision{Remaining: told.Remaining, RetryAfter: micros(told.RetryAfter), ResetAfter: micros(told.ResetAfter), Limit: limit}
		passed := time.Duration(rapid.SampledFrom([]int64{0, l.Token / 2, l.Token, l.Window() / 2}).Draw(t, "passed"))
		if n == unit || !(Rule{}).Denies(d, unit, n, passed) {
			return
		}
		denied++
		// A microsecond before: times are rounded up to them.
		got, want := Rule{}.Later(d, unit, n, passed, 0).RetryAfter, m.Report(nowNS+int64(passed)-1000, l, n).RetryAfter
		if near := limit.Token() + 2*time.Microsecond; want == 0 || got < want-near || got > want+near {
			t.Fatalf("%+v denies %d after %v for %v, want %v: %+v", d, n, passed, got, want, m)
		}
	})
	if denied == 0 && !testing.Short() { // twenty tries may miss them
		t.Error("nothing was denied")
	}
}

func micros(d time.Duration) time.Duration { return (d + 999).Truncate(time.Microsecond) }

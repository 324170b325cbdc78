package bucket

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// nowNS is in 2026.
const nowNS = int64(1_790_000_000_000_000_000)

// anyLimit is a valid limit: rates that divide evenly and rates that just do not, bursts
// from one to the most there can be.
func anyLimit(t *rapid.T, name string) rate.Limit {
	return rapid.Custom(func(t *rapid.T) rate.Limit {
		token := int64(1) << rapid.IntRange(0, 50).Draw(t, "size of a token")
		token += rapid.Int64Range(0, token-1).Draw(t, "token")
		tokens := rapid.SampledFrom([]int64{1, 1, 3, 7, 10, 1000, 86_400}).Draw(t, "tokens")
		rest := rapid.SampledFrom([]int64{0, 0, 1, tokens - 1}).Draw(t, "rest")
		most := int64(100*365*24*time.Hour) / token
		return rate.Limit{
			Tokens: tokens,
			Period: time.Duration(max(tokens, token*tokens-rest)),
			Burst:  rapid.OneOf(rapid.Int64Range(1, min(most, 20)), rapid.Int64Range(1, most), rapid.Just(most)).Draw(t, "burst"),
		}
	}).Filter(func(l rate.Limit) bool { return l.Validate() == nil }).Draw(t, name)
}

func modelled(l rate.Limit) model.Limit { return model.NewLimit(l.Tokens, l.Period, l.Burst) }

// near a time: just there, one nanosecond beside it, or by so much off.
func near(t *rapid.T, name string, at, off int64) int64 {
	return at + rapid.OneOf(
		rapid.SampledFrom([]int64{0, 0, 1, -1, off, off - 1, off + 1, -off, StepNS, StepNS + 1}),
		rapid.Int64Range(-off, off),
		rapid.Int64Range(-1_000_000, 1_000_000),
	).Draw(t, name)
}

// inTime is a time from 1970 to 2043. Not from its first hours: after a step back to them a row
// counts from 1, and the model from a time before 1970.
func inTime(ns int64) int64 { return min(max(2*int64(time.Hour), ns), 1<<61) }

func oneOf(t *rapid.T, times ...int64) int64 { return rapid.SampledFrom(times).Draw(t, "near") }

// anyBucket that a row may hold: it owes no more than its window, leases included, but for a
// little that another limit of the same price may have.
func anyBucket(t *rapid.T) (Row, model.Bucket) {
	limit := modelled(anyLimit(t, "limit of the last write"))
	b := Row{TokenNS: limit.Token, AtNS: inTime(near(t, "at", nowNS, limit.Window()/2))}
	b.FullNS = max(1, min(near(t, "full", b.AtNS, limit.Window()), b.AtNS+limit.Window()))
	if rapid.IntRange(0, 2).Draw(t, "leased") == 0 {
		b.LeasedNS = limit.Token * rapid.Int64Range(1, limit.Burst).Draw(t, "leased tokens")
		b.UntilNS = near(t, "until", b.AtNS, int64(time.Hour))
		b.FullNS = max(1, min(b.FullNS, b.AtNS+limit.Window()-b.LeasedNS))
	}
	return b, model.Bucket{Exists: true, Full: b.FullNS, Token: b.TokenNS, At: b.AtNS, Leased: b.LeasedNS, Until: b.UntilNS}
}

// askedBy is the limit of whoever asks: mostly that of the last write, or close to it.
func askedBy(t *rapid.T, b Row) rate.Limit {
	if rapid.Bool().Draw(t, "limit changed") {
		return anyLimit(t, "new limit")
	}
	limit := rate.Every(time.Duration(b.TokenNS))
	return limit.WithBurst(rapid.Int64Range(1, int64(100*365*24*time.Hour)/b.TokenNS).Draw(t, "burst"))
}

// What a row reads as, and what a decision tells of it, is what the model says.
func TestABucketReadsAsTheModelDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, m := anyBucket(t)
		limit := askedBy(t, b)
		l := modelled(limit)
		now := inTime(near(t, "now", oneOf(t, nowNS, b.AtNS, b.FullNS, b.UntilNS), min(l.Window(), m.Leased+1)))
		stepped := m // the row as the clock's step back leaves it
		stepped.Take(now, l, 0, 1)
		if got, want := b.tokens(now, limit), stepped.Seen(now, l); got != want.Left(now, l) {
			t.Fatalf("%d tokens at %d, want %d: %+v", got, now, want.Left(now, l), want)
		}
		unit := rapid.Int64Range(1, l.Burst).Draw(t, "unit")
		want := m.Report(now, l, unit)
		d := b.Decision(&rate.Request{Limit: limit, Unit: unit}, now, 0)
		if d.Remaining != want.Remaining || !sameWait(d.RetryAfter, want.RetryAfter) || !sameWait(d.ResetAfter, want.ResetAfter) {
			t.Fatalf("%+v, want %+v", d, want)
		}
		if n := want.Remaining; n > 0 {
			m.Take(now, l, n, n)
			if got := b.Take(now, n, limit); !sameRow(got, m) {
				t.Fatalf("after %d tokens: %+v, want %+v", n, got, m)
			}
		}
	})
}

// sameRow says whether a bucket is what the model has. A row counts from 1, and without a lease
// its end means nothing.
func sameRow(b Row, m model.Bucket) bool {
	return b.FullNS == max(1, m.Full) && b.TokenNS == m.Token && b.AtNS == m.At &&
		b.LeasedNS == m.Leased && (b.LeasedNS == 0 || b.UntilNS == m.Until)
}

// sameWait says whether a time to wait is the true one, rounded up to the clock's
// microsecond.
func sameWait(got, want time.Duration) bool { return got >= want && got-want < time.Microsecond }

// A bucket that is full only after the latest time that a row can hold, under the limit of whoever asks,
// may have tokens before: of 200 tokens, each back in a year, one of 100 years after 199 of them.
func TestAWaitWithinTwoCenturies(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * time.Hour
	cheap, dear := rate.Every(year).WithBurst(200), rate.Every(100*year).WithBurst(2)
	b := Row{}.Take(nowNS, 200, cheap)
	for passed, want := range map[time.Duration]time.Duration{0: 199 * year, 150 * year: 49 * year, 199 * year: 0, 199*year - 1: time.Microsecond} {
		d := b.Decision(&rate.Request{Limit: dear, Unit: 1}, nowNS+int64(passed), 0)
		if d.RetryAfter != want || d.ResetAfter != (200*year-passed+time.Microsecond-1).Truncate(time.Microsecond) {
			t.Errorf("after %v: %+v, want %v", passed, d, want)
		}
	}
}

// A lease is settled and the next one granted as the model does it.
func TestALeaseIsWhatTheModelHas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, m := anyBucket(t)
		limit := askedBy(t, b)
		l := modelled(limit)
		now := inTime(near(t, "now", oneOf(t, nowNS, b.AtNS, b.FullNS, b.UntilNS), min(l.Window(), m.Leased+1)))
		ttl := near(t, "ttl", oneOf(t, 5*(b.UntilNS-now), int64(time.Minute)), int64(time.Minute)) // a fifth of it matters
		most := max(1, b.LeasedNS/b.TokenNS)
		r := rate.LeaseRequest{
			Limit:  limit,
			Tokens: rapid.Int64Range(0, l.Burst).Draw(t, "tokens"),
			Share:  rapid.Int64Range(1, 5).Draw(t, "share"),
			TTL:    time.Duration(min(max(ttl, int64(time.Millisecond)), int64(time.Hour))),
			Settle: rate.Lease{
				Tokens: rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, most), rapid.Just(most+1)).Draw(t, "settle"),
				Until:  time.Unix(0, b.UntilNS+rapid.SampledFrom([]int64{0, 0, 0, 1}).Draw(t, "another lease")),
			},
		}
		r.Spent = rapid.Int64Range(0, r.Settle.Tokens).Draw(t, "spent")
		want, until := m.Lease(now, l, model.LeaseRequest{
			Want: r.Tokens, Share: r.Share, TTL: int64(r.TTL), Settle: r.Settle.Tokens, Spent: r.Spent, SettleUntil: r.Settle.Until.UnixNano(),
		})
		got, granted := b.Lease(now, &r)
		if granted != want || !sameRow(got, m) || granted > 0 && got.UntilNS != until {
			t.Fatalf("%d tokens, %+v; want %d until %d, %+v", granted, got, want, until, m)
		}
	})
}

// A refund gives back what the model does.
func TestARefundIsWhatTheModelGivesBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, m := anyBucket(t)
		limit := askedBy(t, b)
		l := modelled(limit)
		now := inTime(near(t, "now", oneOf(t, nowNS, b.AtNS, b.FullNS), l.Window()))
		n := rapid.Int64Range(0, l.Burst).Draw(t, "tokens")
		at := inTime(near(t, "granted at", oneOf(t, now, b.AtNS, now-n*l.Token), l.Window()))
		delay := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, l.Window())).Draw(t, "delay")
		m.Refund(now, l, n, at, delay)
		if got := b.GiveBack(now, &rate.Refund{Request: rate.Request{Limit: limit, Tokens: n}, At: time.Unix(0, at), Delay: time.Duration(delay)}); !sameRow(got, m) {
			t.Fatalf("%+v, want %+v", got, m)
		}
	})
}

// Leases of a bucket end together. If less than a fifth of the TTL is left until then, there is no
// new one: otherwise nobody could settle it in time.
func TestNoLeaseShortlyBeforeTheEndOfAnother(t *testing.T) {
	t.Parallel()
	r := rate.LeaseRequest{Limit: rate.PerHour(10), Tokens: 1, Share: 1, TTL: 10 * time.Second}
	b, _ := Row{}.Lease(nowNS, &r)
	for left, want := range map[time.Duration]int64{2 * time.Second: 1, 2*time.Second - 1: 0} {
		if _, granted := b.Lease(b.UntilNS-int64(left), &r); granted != want {
			t.Errorf("%v before the end: %d tokens, want %d", left, granted, want)
		}
	}
}

package model

import "testing"

var (
	slow = Limit{Token: second, Burst: 10}      // 1 per second
	fast = Limit{Token: second / 10, Burst: 10} // 10 per second
)

// A lease of ten that ends after 9.9 s: spent just before that, its tokens cannot have
// flowed back by then, not at the faster rate either.
func TestTheEndOfALeaseIsAWrite(t *testing.T) {
	t.Parallel()
	for f, over := range map[fault]int64{none: 0, expiresUndated: 10} {
		b, judge := Bucket{fault: f}, NewJudge(slow, fast)
		n, until := b.Lease(began, slow, LeaseRequest{Want: 10, Share: 1, TTL: 99 * fast.Token})
		judge.Grant(until-1, n)
		judge.Grant(until, b.Take(until, fast, 10, 1))
		if got := judge.Tokens(judge.Over()); got != over {
			t.Errorf("%v: %d tokens over, want %d", f, got, over)
		}
	}
}

// Ten tokens are taken and flow back while they are out; ten others are taken; the clock
// steps back to before the first were taken, which is noticed; and those are given back.
func TestARefundFromBeforeAStepGivesNothing(t *testing.T) {
	t.Parallel()
	for f, over := range map[fault]int64{none: 0, refundsAcrossAStep: 10} {
		b, judge := Bucket{fault: f}, NewJudge(slow)
		first := judge.Grant(0, b.Take(began, slow, 10, 10))
		judge.Grant(10*second, b.Take(began+10*second, slow, 10, 10))
		now := int64(began - second) // 11 s back
		b.Take(now, slow, 1, 1)      // is denied, and dates the row
		b.Refund(now, slow, 10, began, 0)
		judge.Refund(first)
		judge.Grant(10*second, b.Take(now, slow, 10, 1))
		if got := judge.Tokens(judge.Over()); got != over {
			t.Errorf("%v: %d tokens over, want %d", f, got, over)
		}
	}
}

// A lease is settled in the price that the row has by then.
func TestALeaseIsSettledUnderAnotherLimit(t *testing.T) {
	t.Parallel()
	var b Bucket
	n, until := b.Lease(began, slow, LeaseRequest{Want: 6, Share: 1, TTL: second})
	if n != 6 || b.Take(began, fast, 3, 3) != 3 {
		t.Fatalf("%d leased: %+v", n, b)
	}
	b.Lease(began, slow, LeaseRequest{Share: 1, Settle: 6, Spent: 1, SettleUntil: until})
	if want := (Bucket{Exists: true, Full: began + 4*fast.Token, Token: fast.Token, At: began, Until: until}); b != want {
		t.Errorf("%+v, want %+v", b, want)
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	var b Bucket
	lease := func(now, want, share, ttl int64) (int64, int64) {
		n, until := b.Lease(now, slow, LeaseRequest{Want: want, Share: share, TTL: ttl})
		return n, until - began
	}
	for _, test := range []struct{ at, want, share, ttl, n, until int64 }{
		{0, 9, 3, 100, 3, 100},   // a third of ten
		{50, 2, 3, 1000, 0, 100}, // 50 left of the shared time, a fifth of the TTL is 200
		{80, 2, 3, 100, 2, 100},  // 20 left: just enough
		{81, 2, 3, 100, 0, 100},
		{81, 9, 3, 50, 1, 100},  // a third of five
		{82, 9, 5, 50, 0, 100},  // a fifth of four
		{100, 9, 3, 50, 1, 150}, // all are spent; four less 100 ns are left, which is three
	} {
		if n, until := lease(began+test.at, test.want, test.share, test.ttl); n != test.n || until != test.until {
			t.Errorf("%+v: %d until %d", test, n, until)
		}
	}
}

package pglimittest_test

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func ahead(key string, limit rate.Limit, tokens int64, by time.Duration) rate.Request {
	r := bucket(key, limit, tokens)
	r.Ahead = by
	return r
}

// Tokens that come back in time are granted in the order in which they are asked for, each with
// the time when it is due, and nobody else gets them.
func TestTokensAheadAreGrantedInOrder(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	memory, limit := pglimittest.Memory(), rate.PerSecond(10).WithBurst(2)
	for i, want := range []struct {
		granted int64
		delay   time.Duration
	}{{1, 0}, {1, 0}, {1, 100 * ms}, {1, 200 * ms}, {1, 300 * ms}, {0, 0}} {
		d := take(t, memory, ahead("k", limit, 1, 350*ms))[0]
		if d.Granted != want.granted || d.Delay != want.delay || d.Allowed != (want.granted > 0) {
			t.Errorf("request %d: %+v, want %+v", i, d, want)
		}
	}
	// Without Ahead, the next token is there when the reserved ones are used up.
	if d := take(t, memory, bucket("k", limit, 1))[0]; d.Allowed || d.RetryAfter != 400*ms {
		t.Errorf("%+v", d)
	}
	memory.Advance(50 * ms)
	if d := take(t, memory, ahead("k", limit, 1, 350*ms))[0]; d.Delay != 350*ms {
		t.Errorf("%+v", d)
	}
	// In units: as many as come back in time, all of which are there after Delay.
	many := ahead("many", limit, 10, 350*ms)
	many.Unit = 1
	if d := take(t, memory, many)[0]; d.Granted != 5 || d.Delay != 300*ms {
		t.Errorf("%+v", d)
	}
}

// What was reserved and not used goes back, unless others have reserved behind it.
func TestReservedTokensAreGivenBack(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerSecond(10).WithBurst(1)
	take(t, memory, bucket("k", limit, 1))
	giveBack := func(d rate.Decision) {
		t.Helper()
		refund := rate.Refund{Request: ahead("k", limit, 1, time.Second), At: d.At, Delay: d.Delay}
		if err := memory.GiveBack(t.Context(), nil, []rate.Refund{refund}); err != nil {
			t.Error(err)
		}
	}
	last := func() time.Duration { return take(t, memory, bucket("k", limit, 0))[0].ResetAfter }
	first := take(t, memory, ahead("k", limit, 1, time.Second))[0]
	second := take(t, memory, ahead("k", limit, 1, time.Second))[0]
	giveBack(first)
	if last() != 300*time.Millisecond {
		t.Errorf("full in %v: the second has not moved up, so the first must stay", last())
	}
	giveBack(second)
	if last() != 200*time.Millisecond {
		t.Errorf("full in %v: the second was the last, and goes back", last())
	}
}

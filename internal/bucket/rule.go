package bucket

import (
	"math"
	"math/bits"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Rule is that of a token bucket: a token comes back in each Limit.Token, until there is a burst. Those of a calendar
// window come back at its end.
type Rule struct{}

var _ rate.Rule = Rule{}

// Later returns the decision as it reads for n tokens, after that time, with more tokens.
func (Rule) Later(d rate.Decision, unit, n int64, passed time.Duration, more int64) rate.Decision {
	unit, n = max(unit, 1), max(n, 1)
	if d.Limit.Calendar != "" {
		return laterInWindow(d, n, passed, more)
	}
	burst, token := d.Limit.Burst, d.Limit.Token()

	left := d.Remaining
	if d.Delay > 0 { // the bucket owed more than its burst
		left = -refilled(d.Delay, token)
	}
	if passed > 0 {
		there, wait := burst, d.ResetAfter // so many are there after wait
		if d.RetryAfter > passed {
			there, wait = unit, d.RetryAfter
		}
		left = max(left, there-refilled(max(0, wait-passed), token))
	}
	left = max(0, min(left, burst-more)+more)

	wait := d.RetryAfter
	switch {
	case left >= n:
		wait = 0
	case wait == 0 || n != unit:
		// Leased tokens are a part of ResetAfter, but may not be of RetryAfter. So a larger request than
		// the first may have to wait for them, too.
		full := d.ResetAfter - refillTime(burst-n, token)
		if wait > 0 {
			full = max(full, plus(wait, refillTime(n, token)-refillTime(unit, token)))
		}
		wait = full
	}

	earlier := passed
	if more > 0 {
		earlier = plus(passed, refillTime(more, token))
	}
	d.Remaining = left
	d.RetryAfter, d.ResetAfter, d.Delay = max(0, wait-earlier), max(0, d.ResetAfter-earlier), max(0, d.Delay-earlier)
	d.At = d.At.Add(passed)
	return d
}

// laterInWindow is Later for a limit with a Calendar: all tokens come back after ResetAfter.
func laterInWindow(d rate.Decision, n int64, passed time.Duration, more int64) rate.Decision {
	d.ResetAfter = max(0, d.ResetAfter-passed)
	if d.ResetAfter == 0 {
		d.Remaining = d.Limit.Burst
	}
	d.Remaining = min(d.Remaining+more, d.Limit.Burst)
	if d.Remaining == d.Limit.Burst {
		d.ResetAfter = 0
	}
	if d.RetryAfter = d.ResetAfter; d.Remaining >= n {
		d.RetryAfter = 0
	}
	d.At = d.At.Add(passed)
	return d
}

// Denies says whether n tokens are denied until that time has passed.
//
// When they are there follows from ResetAfter, unless tokens are leased or the bucket was taken from
// under another limit. A decision does not say that, but its fields do not agree with one another
// then, unless it makes a difference of less than a token. So one token counts as if it came at once. They do agree if
// the unit comes back after the leases have ended only, and less may before that: then more than a burst is owed.
func (rule Rule) Denies(d rate.Decision, unit, n int64, passed time.Duration) bool {
	unit, n = max(unit, 1), max(n, 1)
	if n == unit {
		return passed < d.RetryAfter
	}
	if d.Limit.Calendar != "" {
		return n > d.Remaining && passed < d.ResetAfter
	}
	token := d.Limit.Token()
	if n < unit && d.ResetAfter-d.Limit.Window() >= time.Microsecond {
		return false
	}
	sure := n > unit && passed < d.RetryAfter || n-d.Remaining > refilled(passed, token)
	return sure && plain(&d, unit, token) && rule.Later(d, unit, n, passed, 0).RetryAfter > 0
}

// plain says whether the fields of a decision are those of a bucket without leases that was taken from
// under this limit. Times are rounded up to microseconds.
func plain(d *rate.Decision, unit int64, token time.Duration) bool {
	burst, full := d.Limit.Burst, d.ResetAfter
	if off := d.RetryAfter - (full - refillTime(burst-unit, token)); d.RetryAfter > 0 && (off >= time.Microsecond || off <= -time.Microsecond) {
		return false
	}
	least, most := burst-refilled(full, token), burst-refilled(max(0, full-time.Microsecond+1), token)
	return max(0, least) <= d.Remaining && d.Remaining <= max(0, most)
}

// RefillTime is the time in which that many tokens come back, at most the longest Duration
// (292 years).
func RefillTime(limit rate.Limit, tokens int64) time.Duration {
	return refillTime(tokens, limit.Token())
}

func refillTime(tokens int64, token time.Duration) time.Duration {
	high, low := bits.Mul64(uint64(tokens), uint64(token))
	if high > 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(low)
}

// refilled is how many tokens come back in that time, rounded up.
func refilled(in, token time.Duration) int64 {
	tokens := in / token
	if in%token > 0 {
		tokens++
	}
	return int64(tokens)
}

// plus is the sum, at most the longest Duration. a must not be negative.
func plus(a, b time.Duration) time.Duration {
	return a + min(b, math.MaxInt64-a)
}

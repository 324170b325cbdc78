package pglimit

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Limit is Tokens per Period, at most Burst at once: a bucket that holds Burst
// tokens, starts full and is refilled evenly. PerSecond(10).WithBurst(20) grants
// 20 at once to a key that was quiet, then one every 100 ms.
//
// The zero value is not a valid limit. Tokens and Period say the rate and
// nothing else: 60 per minute and 1 per second differ only in their default
// Burst.
type Limit struct {
	// Tokens that are refilled in a Period. At least 1, at most 2^62 / 1000, which
	// is about 4.6e15.
	Tokens int64

	// Period in which Tokens are refilled. Any whole number of nanoseconds, as
	// long as the rate is at most one token per nanosecond.
	Period time.Duration

	// Burst is the most that can be granted at once. Zero means Tokens.
	Burst int64
}

// MaxRate is the highest rate of a [Limit], in tokens per second.
const MaxRate = 1_000_000_000

// maxTokens keeps a microsecond's refill, which is at most Tokens × 1,000 parts,
// within maxParts.
const maxTokens = maxParts / 1000

// maxParts bounds Burst × parts of a token, so that a bucket's debt, and the
// debt after one more grant, fit a bigint with room to spare.
const maxParts = 1 << 62

// PerSecond is a Limit of n tokens per second with a Burst of n.
func PerSecond(n int64) Limit { return Limit{Tokens: n, Period: time.Second} }

// PerMinute is a Limit of n tokens per minute with a Burst of n.
func PerMinute(n int64) Limit { return Limit{Tokens: n, Period: time.Minute} }

// PerHour is a Limit of n tokens per hour with a Burst of n.
func PerHour(n int64) Limit { return Limit{Tokens: n, Period: time.Hour} }

// Every is a Limit of one token per d with a Burst of 1: two grants are at least
// d apart.
func Every(d time.Duration) Limit { return Limit{Tokens: 1, Period: d} }

// WithBurst returns the limit with another Burst. Zero means Tokens.
func (l Limit) WithBurst(burst int64) Limit {
	l.Burst = burst
	return l
}

// Capacity is the number of tokens in a full bucket: Burst, or Tokens where
// Burst is zero.
func (l Limit) Capacity() int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// Parts expresses the rate exactly in whole numbers: a token consists of
// perToken parts, and perMicrosecond parts are refilled in each microsecond (the
// resolution of Postgres's clock). Three tokens per second are 3 parts per
// microsecond, 1,000,000 parts a token; a billion per second are 1,000 parts
// per microsecond, 1 part a token. The two have no common divisor, so equal
// rates have equal parts.
//
// A strategy that counts parts never rounds. Parts is defined for a valid Limit
// only.
func (l Limit) Parts() (perToken, perMicrosecond int64) {
	divisor := gcd(l.Tokens, int64(l.Period))
	tokens, nanos := l.Tokens/divisor, int64(l.Period)/divisor
	divisor = gcd(1000, nanos)
	return nanos / divisor, tokens * (1000 / divisor)
}

// Validate returns a [*LimitError] that names the field, its value and what is
// allowed, or nil.
func (l Limit) Validate() error {
	switch {
	case l.Tokens < 1:
		return &LimitError{l, "Tokens", fmt.Sprintf("is %d: it must be at least 1", l.Tokens)}
	case l.Period < 1:
		return &LimitError{l, "Period", fmt.Sprintf("is %v: it must be longer than zero", l.Period)}
	case l.Tokens > int64(l.Period):
		return &LimitError{l, "Tokens", fmt.Sprintf("is %d in %v: the rate must be at most %d tokens per second", l.Tokens, l.Period, MaxRate)}
	case l.Tokens > maxTokens:
		return &LimitError{l, "Tokens", fmt.Sprintf("is %d: it must be at most %d (say the same rate with a shorter Period)", l.Tokens, int64(maxTokens))}
	case l.Burst < 0:
		return &LimitError{l, "Burst", fmt.Sprintf("is %d: it must be at least 1, or 0 for as many as Tokens", l.Burst)}
	}
	// A token has at most as many parts as the Period has nanoseconds: for most limits
	// that says enough, without finding out how many.
	if over, parts := bits.Mul64(uint64(l.Capacity()), uint64(l.Period)); over == 0 && parts <= maxParts {
		return nil
	}
	perToken, _ := l.Parts()
	if over, parts := bits.Mul64(uint64(l.Capacity()), uint64(perToken)); over != 0 || parts > maxParts {
		return &LimitError{l, "Burst", fmt.Sprintf(
			"is %d, too many to be counted exactly at this rate (a token is %d parts, a bucket holds at most %d): use a smaller Burst or rounder Tokens and Period",
			l.Capacity(), perToken, int64(maxParts))}
	}
	return nil
}

// refillTime of so many tokens, rounded down to the nanosecond; at most the longest
// Duration, which is 292 years.
func (l Limit) refillTime(tokens int64) time.Duration {
	high, low := bits.Mul64(uint64(tokens), uint64(l.Period))
	if high >= uint64(l.Tokens) {
		return math.MaxInt64
	}
	nanos, _ := bits.Div64(high, low, uint64(l.Tokens))
	return time.Duration(min(nanos, math.MaxInt64))
}

// refilled is how many tokens flow back in the time, rounded up.
func (l Limit) refilled(in time.Duration) int64 {
	high, low := bits.Mul64(uint64(in), uint64(l.Tokens))
	if high >= uint64(l.Period) {
		return math.MaxInt64
	}
	tokens, rest := bits.Div64(high, low, uint64(l.Period))
	if rest > 0 {
		tokens++
	}
	return int64(min(tokens, math.MaxInt64))
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

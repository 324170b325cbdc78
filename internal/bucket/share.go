package bucket

import (
	"math"
	"math/bits"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Share is the limit with parts/of of its rate and of its burst, both rounded down, but a burst of at least one. parts
// is from 1 to of.
func Share(limit rate.Limit, parts, of int64) rate.Limit {
	burst, _ := scaled(limit.Burst, parts, of)
	if limit.Calendar != "" { // all of a window's tokens come back at once
		limit.Burst = max(1, burst)
		return limit
	}
	token, rest := scaled(int64(limit.Token()), of, parts)
	if rest {
		token++
	}
	token = min(token, int64(rate.MaxWindow))
	share := rate.Limit{Tokens: limit.Tokens, Burst: max(1, min(burst, int64(rate.MaxWindow)/token))}
	if share.Tokens > int64(rate.MaxWindow)/token {
		share.Tokens = 1
	}
	share.Period = time.Duration(share.Tokens * token)
	return share
}

// scaled is n × by / of, rounded down, and whether that left a rest. At most the largest integer but one.
func scaled(n, by, of int64) (quotient int64, rest bool) {
	high, low := bits.Mul64(uint64(n), uint64(by))
	if high >= uint64(of) {
		return math.MaxInt64 - 1, false
	}
	q, r := bits.Div64(high, low, uint64(of))
	return int64(min(q, math.MaxInt64-1)), r > 0
}

package strategies

import (
	"math"
	"math/bits"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// bucket is a row, and what a decision leaves of it. The arithmetic here is that
// of pglimit.owed and pglimit.grantable in the schema: in Go for the
// strategy that decides in Go, and for what a decision tells the caller.
type bucket struct {
	debt  int64 // in parts: what was taken and has not flowed back
	atUS  int64 // when, in microseconds since 1970 by the database's clock
	scale scale // of the limit under which it was written
}

// scale is a limit in parts, see pglimit.Limit.Parts.
type scale struct {
	token  int64 // parts of a token
	refill int64 // parts that flow back per microsecond
	burst  int64 // tokens
}

func scaleOf(limit pglimit.Limit) scale {
	token, refill := limit.Parts()
	return scale{token: token, refill: refill, burst: limit.Capacity()}
}

func (s scale) capacity() int64 { return s.burst * s.token }

// settle brings the bucket to a later time and, maybe, another limit. Refilling
// follows the limit under which the row was written; what was used stays used, at
// most the new burst.
func (b bucket) settle(nowUS int64, to scale) bucket {
	elapsed := min(max(0, nowUS-b.atUS), b.debt/b.scale.refill+1) // the min keeps the product from overflowing
	debt := max(0, b.debt-elapsed*b.scale.refill)
	if b.scale.token != to.token {
		debt = rescale(debt, to.token, b.scale.token)
	}
	return bucket{debt: min(debt, to.capacity()), atUS: max(b.atUS, nowUS), scale: to}
}

// rescale is debt × to / from, rounded up, or the largest integer if it is
// larger than that.
func rescale(debt, to, from int64) int64 {
	high, low := bits.Mul64(uint64(debt), uint64(to))
	if high >= uint64(from) {
		return math.MaxInt64
	}
	quotient, rest := bits.Div64(high, low, uint64(from))
	if rest > 0 {
		quotient++
	}
	return int64(min(quotient, math.MaxInt64))
}

// grantable tokens of those wanted, in whole multiples of the unit.
func (b bucket) grantable(r pglimit.Request) int64 {
	unit := max(r.Unit, 1)
	return min(r.Tokens, (b.scale.capacity()-b.debt)/b.scale.token) / unit * unit
}

// decision tells the caller what was granted and what the bucket is like now.
func (b bucket) decision(r pglimit.Request, granted int64) pglimit.Decision {
	unit := max(r.Unit, 1)
	left := b.scale.capacity() - b.debt
	d := pglimit.Decision{
		Allowed:    granted > 0,
		Granted:    granted,
		Remaining:  left / b.scale.token,
		RetryAfter: b.scale.refillTime(unit*b.scale.token - left),
		ResetAfter: b.scale.refillTime(b.debt),
		At:         time.UnixMicro(b.atUS).UTC(),
	}
	if r.Tokens == 0 {
		d.Allowed = d.Remaining >= unit
	}
	return d
}

// refillTime of so many parts, rounded up to the clock's resolution; at most the
// longest Duration, which is 292 years.
func (s scale) refillTime(parts int64) time.Duration {
	if parts <= 0 {
		return 0
	}
	micros := (parts-1)/s.refill + 1
	return time.Duration(min(micros, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

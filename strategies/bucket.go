package strategies

import (
	"math"
	"math/bits"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// bucket is a row, and what a decision leaves of it. The arithmetic here is that
// of pglimit.owed_v1 and pglimit.grantable_v1 in the schema: in Go for the
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

// settle brings the bucket to a later time and, maybe, another limit. Then what was
// used stays used, at most the new burst; and it flows back since it was written as
// the old limit says or as the new one does, whichever leaves less.
func (b bucket) settle(nowUS int64, to scale) bucket {
	elapsed := nowUS - b.atUS
	asOld := rescale(drain(b.debt, elapsed, b.scale.refill), to.token, b.scale.token)
	asNew := drain(min(to.capacity(), rescale(b.debt, to.token, b.scale.token)), elapsed, to.refill)
	return bucket{debt: min(asOld, asNew), atUS: max(b.atUS, nowUS), scale: to}
}

// drain is what is left of a debt after so many microseconds of refilling. A clock
// that stepped back refills nothing.
func drain(debt, elapsedUS, refill int64) int64 {
	elapsedUS = min(max(0, elapsedUS), debt/refill+1) // or the product might overflow
	return max(0, debt-elapsedUS*refill)
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

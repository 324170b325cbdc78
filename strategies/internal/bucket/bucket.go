// Package bucket is the arithmetic of a bucket, as the SQL has it.
package bucket

import (
	"math"
	"math/big"
	"sort"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Bucket is a row: the time at which the bucket is full again, and two notes of the last
// write. All are nanoseconds, times since 1970 by the database's clock. The zero bucket is
// no row, which is a full bucket.
//
// The arithmetic here is that of read_full_ns.sql and token_bucket_read.sql in
// migrations/functions: in Go for the strategy that decides in Go, and for what a decision
// tells its caller.
type Bucket struct {
	FullNS  int64
	TokenNS int64 // the price of a token under the limit of the last write
	AtNS    int64 // when that was

	// What leases set aside of the window until untilNS. Only token_bucket has them.
	LeasedNS, UntilNS int64
}

// StepNS is that of step_ns.sql: a row further ahead of the clock was written before the
// clock stepped back.
const StepNS = int64(10 * time.Millisecond)

// Fields of a row, in the order of every statement that returns one.
func (b *Bucket) Fields() []any { return []any{&b.FullNS, &b.TokenNS, &b.AtNS} }

// Ahead says that the clock has stepped back since the row was written.
func (b Bucket) Ahead(nowNS int64) bool { return b.AtNS > nowNS+StepNS }

// Stepped is the row as it reads after the clock stepped back: what was owed when it was
// written is owed now.
func (b Bucket) Stepped(nowNS int64) Bucket {
	if by := b.AtNS - nowNS; by > StepNS {
		b.FullNS, b.AtNS, b.UntilNS = max(1, b.FullNS-by), nowNS, b.UntilNS-by
	}
	return b
}

// read returns when the bucket is full, leases apart, and what they set aside, as the row
// reads at nowNS to somebody who pays tokenNS for a token.
func (b Bucket) read(nowNS, tokenNS int64) (fullNS, leasedNS int64) {
	b = b.Stepped(nowNS)
	if b.LeasedNS > 0 && b.UntilNS <= nowNS { // it counts as spent since it expired
		b.FullNS = max(b.FullNS, b.UntilNS)
		b.FullNS += min(b.LeasedNS, math.MaxInt64-b.FullNS)
		b.AtNS = max(b.AtNS, b.UntilNS)
		b.LeasedNS = 0
	}
	if b.TokenNS == tokenNS || b.TokenNS == 0 {
		return b.FullNS, b.LeasedNS
	}
	// What was used stays used, in tokens. Since it was written it has flowed back at the
	// faster of both rates.
	laterNS := max(nowNS, b.AtNS)
	asWritten := product(b.FullNS-laterNS, tokenNS)
	asAsked := product(b.FullNS-b.AtNS, tokenNS)
	asAsked.Sub(asAsked, product(laterNS-b.AtNS, b.TokenNS))
	if asAsked.Cmp(asWritten) < 0 {
		asWritten = asAsked
	}
	owedNS := ratio(asWritten, b.TokenNS)
	return laterNS + min(owedNS, math.MaxInt64-laterNS), ratio(product(b.LeasedNS, tokenNS), b.TokenNS)
}

// product does not overflow.
func product(a, b int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
}

// ratio is a / b, rounded up, from zero to the largest integer.
func ratio(a *big.Int, b int64) int64 {
	if a.Sign() <= 0 {
		return 0
	}
	quotient, rest := new(big.Int).QuoRem(a, big.NewInt(b), new(big.Int))
	if !quotient.IsInt64() || quotient.Int64() == math.MaxInt64 {
		return math.MaxInt64
	}
	if rest.Sign() > 0 {
		return quotient.Int64() + 1
	}
	return quotient.Int64()
}

// tokens that can be had at nowNS under the limit.
func (b Bucket) tokens(nowNS int64, limit rate.Limit) int64 {
	tokenNS, restNS := int64(limit.Token()), int64(limit.Window())
	fullNS, leasedNS := b.read(nowNS, tokenNS)
	if restNS -= max(0, fullNS-nowNS); restNS <= leasedNS {
		return 0
	}
	return (restNS - leasedNS) / tokenNS
}

// Take is the bucket after so many tokens, which it has, were taken at nowNS. It has no
// leases.
func (b Bucket) Take(nowNS, tokens int64, limit rate.Limit) Bucket {
	tokenNS := int64(limit.Token())
	fullNS, _ := b.read(nowNS, tokenNS)
	return Bucket{FullNS: max(fullNS, nowNS) + tokens*tokenNS, TokenNS: tokenNS, AtNS: max(b.Stepped(nowNS).AtNS, nowNS)}
}

// Grantable tokens of those wanted, in whole multiples of the unit.
func (b Bucket) Grantable(nowNS int64, r *rate.Request) int64 {
	unit := max(r.Unit, 1)
	return min(r.Tokens, b.tokens(nowNS, r.Limit)) / unit * unit
}

// wait is the time, from nowNS, until so many tokens are there, if nobody else takes any. In
// whole microseconds, which is what the clock shows.
func (b Bucket) wait(nowNS, tokens int64, limit rate.Limit) time.Duration {
	b = b.Stepped(nowNS)
	var waitNS int64
	if (b.TokenNS == int64(limit.Token()) || b.TokenNS == 0) && b.LeasedNS == 0 {
		waitNS = max(0, b.FullNS-nowNS-(int64(limit.Window())-tokens*int64(limit.Token())))
	} else {
		// Another limit or a lease: more are there the later it is, so it can be searched. But
		// when a lease ends there may be fewer, so before and after it are two searches.
		there := func(ns int) bool { return b.tokens(nowNS+int64(ns), limit) >= tokens }
		from, to := 0, int(math.MaxInt64-nowNS)
		if end := int(b.UntilNS - nowNS); b.LeasedNS > 0 && end > 0 {
			if there(end - 1) {
				to = end
			} else {
				from = end
			}
		}
		waitNS = int64(from + sort.Search(to-from, func(ns int) bool { return there(from + ns) }))
	}
	if rest := waitNS % 1000; rest > 0 {
		waitNS += 1000 - rest
	}
	return time.Duration(waitNS)
}

// Decision tells the caller what was granted, and what the bucket is like after it.
func (b Bucket) Decision(r *rate.Request, nowNS, granted int64) rate.Decision {
	unit := max(r.Unit, 1)
	d := rate.Decision{
		Allowed:    granted > 0,
		Granted:    granted,
		Remaining:  b.tokens(nowNS, r.Limit),
		RetryAfter: b.wait(nowNS, unit, r.Limit),
		ResetAfter: b.wait(nowNS, r.Limit.Burst, r.Limit),
		At:         time.Unix(0, nowNS).UTC(),
	}
	if r.Tokens == 0 {
		d.Allowed = d.Remaining >= unit
	}
	return d
}

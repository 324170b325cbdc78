package bucket

import (
	"math"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Lease settles an earlier lease at nowNS, if the request has one, and sets tokens aside for
// the next one, as token_bucket_lease.sql does. It returns the bucket after that, and how many
// tokens the new lease has. That lease expires at UntilNS.
func (b Row) Lease(nowNS int64, r *rate.LeaseRequest) (after Row, granted int64) {
	b = b.Stepped(nowNS).settle(nowNS, r)
	seen := b.asOf(nowNS, int64(r.Limit.Token()))
	if seen.LeasedNS == 0 {
		seen.UntilNS = nowNS + int64(r.TTL)
	}
	if seen.UntilNS-nowNS >= int64(r.TTL)/5 {
		granted = min(r.Tokens, b.tokens(nowNS, r.Limit)/r.Share)
	}
	if granted == 0 {
		return b, 0
	}
	seen.LeasedNS += granted * seen.TokenNS
	return seen, granted
}

// settle takes the lease out of what is set aside, at the row's own price; the bucket owes the
// spent tokens from then on. A lease that the row does not know, because it has expired or the
// bucket was reset, is left alone.
func (b Row) settle(nowNS int64, r *rate.LeaseRequest) Row {
	n := r.Settle.Tokens
	if n == 0 || b.UntilNS <= nowNS || b.UntilNS != r.Settle.Until.UnixNano() || n > b.LeasedNS/b.TokenNS {
		return b
	}
	if b.LeasedNS -= n * b.TokenNS; b.LeasedNS == 0 {
		b.UntilNS = 0
	}
	owedFromNS, spentNS := max(b.FullNS, nowNS), r.Spent*b.TokenNS
	b.FullNS = owedFromNS + min(spentNS, math.MaxInt64-owedFromNS)
	b.AtNS = max(b.AtNS, nowNS)
	return b
}

package strategies

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var _ rate.Leaser = TokenBucket{}

var tokenBucketLease = statement("token_bucket/lease.sql")

// Lease settles the old lease and takes a new one, in one round trip. It locks the row, even
// if it sets nothing aside. It waits for any call that holds the row: if it gave up, the unspent
// tokens of the old lease would be lost until that lease expires.
func (TokenBucket) Lease(ctx context.Context, session rate.Session, r rate.LeaseRequest) (rate.Lease, error) {
	if err := r.Validate(); err != nil {
		return rate.Lease{}, err
	}
	look := rate.Request{Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Unit: 1, Durability: r.Durability}
	var numbers []int64
	err := postgres.Again(ctx, session, 5, func() error {
		return session.Row(ctx, tokenBucketLease, []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.Share, r.TTL.Nanoseconds(),
			r.Settle.Tokens, r.Spent, untilNS(r.Settle), postgres.MannerOf(session, []rate.Request{look}).Relaxed,
		}, &numbers)
	})
	if err != nil {
		return rate.Lease{}, postgres.Explain(err)
	}
	after := bucketOf(numbers[2:])
	lease := rate.Lease{Tokens: numbers[1], Left: after.Decision(&look, numbers[0], 0)}
	lease.At = lease.Left.At
	if lease.Tokens > 0 {
		lease.Until = time.Unix(0, after.UntilNS).UTC()
	}
	return lease, nil
}

// untilNS is when the lease expires, or 0 if there is no lease.
func untilNS(lease rate.Lease) int64 {
	if lease.Tokens == 0 {
		return 0
	}
	return lease.Until.UnixNano()
}

package strategies

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/pglimit"
)

// TokenBucket decides in a stored function, in one round trip: an update that takes the
// tokens if they are there, and a look if they were not.
//
//   - Locks: for a grant, the row, until the commit; for a denial nothing, unless the
//     tokens went to another while the update waited for the row.
//   - Round trips: one, for one request or many. Many requests of one limiter and limit
//     are one statement; of several, or in a transaction of the caller's, a loop inside
//     Postgres, each dated when it was its turn. Of two calls that make the same new keys at the same moment, one may take a
//     second trip.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: being the default. Any limit, many keys in one call, decided by the
//     clock as it is when the row is locked; it can lease.
//   - Bad at: nothing that another strategy here is good at, but it needs the stored
//     function, so its logic changes by migration only.
//
// The zero value is ready to use, concurrently.
type TokenBucket struct{}

var _ pglimit.Strategy = TokenBucket{}

var (
	//go:embed token_bucket_take.sql
	tokenBucketTakeFile string

	tokenBucketTable = newTable("token_bucket", sweepBucketsFile)
	tokenBucketTake  = statement(tokenBucketTakeFile, "token_bucket")
)

// Name is token_bucket.
func (TokenBucket) Name() string { return "token_bucket" }

// Check takes any limit.
func (TokenBucket) Check(pglimit.Limit) error { return nil }

// Take decides in one round trip.
func (s TokenBucket) Take(ctx context.Context, db pglimit.DB, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := validate(s, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	decisions := make([]pglimit.Decision, len(requests))
	relaxed := relaxes(db, requests)
	var err error
	switch r := &requests[0]; {
	case len(requests) == 1 && (r.Tokens == 0 || r.Unit == r.Tokens):
		decisions[0], err = takeTokens(ctx, db, *r, relaxed)
	case ofOneLimit(requests) && autocommits(db):
		err = takeManyTokens(ctx, db, requests, decisions, relaxed)
	default:
		err = takeMixedTokens(ctx, db, requests, decisions, relaxed)
	}
	if err != nil {
		return nil, explain(err)
	}
	return decisions, nil
}

// takeTokens takes all or nothing.
func takeTokens(ctx context.Context, db pglimit.DB, r pglimit.Request, relaxed bool) (pglimit.Decision, error) {
	after := bucket{scale: scaleOf(r.Limit)}
	var granted int64
	err := db.QueryRow(ctx, tokenBucketTake,
		r.Key, r.Limiter, after.scale.token, after.scale.refill, after.scale.burst, r.Tokens, relaxed,
	).Scan(&granted, &after.debt, &after.atUS)
	if err != nil {
		return pglimit.Decision{}, err
	}
	return after.decision(r, granted), nil
}

// GiveBack reduces the debt, each row in an update of its own.
func (s TokenBucket) GiveBack(ctx context.Context, db pglimit.DB, refunds []pglimit.Refund) error {
	return giveBack(ctx, db, s, refunds, tokenBucketTable.giveBack, bucketRefund)
}

// Reset deletes the row.
func (TokenBucket) Reset(ctx context.Context, db pglimit.DB, limiter, key string) error {
	return tokenBucketTable.resetKey(ctx, db, limiter, key)
}

// Sweep walks the table by pages.
func (TokenBucket) Sweep(ctx context.Context, db pglimit.DB, from pglimit.Cursor, limit int) (pglimit.Swept, error) {
	return tokenBucketTable.sweepBatch(ctx, db, from, limit)
}

package strategies

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit"
)

// TokenBucket decides in a stored function: look, lock, decide, write, in one
// round trip.
//
//   - Locks: for a grant, the row, from the moment of the decision to the commit; for
//     a denial nothing, unless the tokens went to another between look and lock.
//   - Round trips: one, for one request or many.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: being the default. Any limit, many keys in one call, decided by the
//     clock as it is when the row is locked, never a second round trip.
//   - Bad at: nothing that another strategy here is good at, but it needs the stored
//     function, so its logic changes by migration only.
//
// The zero value is ready to use, concurrently.
type TokenBucket struct{}

var _ pglimit.Strategy = TokenBucket{}

var (
	//go:embed token_bucket_take.sql
	tokenBucketTakeFile string
	//go:embed token_bucket_take_many.sql
	tokenBucketTakeManyFile string

	tokenBucketTable    = newTable("token_bucket", sweepBucketsFile)
	tokenBucketTake     = statement(tokenBucketTakeFile, "token_bucket")
	tokenBucketTakeMany = statement(tokenBucketTakeManyFile, "token_bucket")
)

// Name is token_bucket.
func (TokenBucket) Name() string { return "token_bucket" }

// Check takes any limit.
func (TokenBucket) Check(pglimit.Limit) error { return nil }

// Take decides in one round trip.
func (s TokenBucket) Take(ctx context.Context, db pglimit.DB, requests []pglimit.Request) ([]pglimit.Decision, error) {
	if err := validate(s, requests); err != nil {
		return nil, err
	}
	decisions := make([]pglimit.Decision, len(requests))
	var err error
	switch len(requests) {
	case 0:
	case 1:
		decisions[0], err = takeTokens(ctx, db, requests[0], relaxes(db, requests))
	default:
		err = takeManyTokens(ctx, db, requests, decisions)
	}
	if err != nil {
		return nil, explain(err)
	}
	return decisions, nil
}

func takeTokens(ctx context.Context, db pglimit.DB, r pglimit.Request, relaxed bool) (pglimit.Decision, error) {
	after := bucket{scale: scaleOf(r.Limit)}
	var granted int64
	err := db.QueryRow(ctx, tokenBucketTake,
		r.Key, r.Limiter, after.scale.token, after.scale.refill, after.scale.burst, r.Tokens, max(r.Unit, 1), relaxed,
	).Scan(&granted, &after.debt, &after.atUS)
	if err != nil {
		return pglimit.Decision{}, err
	}
	return after.decision(r, granted), nil
}

func takeManyTokens(ctx context.Context, db pglimit.DB, requests []pglimit.Request, decisions []pglimit.Decision) error {
	order := lockOrder(requests)
	n := len(requests)
	keys, limiters := make([]string, n), make([]string, n)
	numbers := make([]int64, 5*n) // one allocation for five columns
	tokens, refills, bursts, wants, units := numbers[:n], numbers[n:2*n], numbers[2*n:3*n], numbers[3*n:4*n], numbers[4*n:]
	for row, i := range order {
		r, scale := &requests[i], scaleOf(requests[i].Limit)
		keys[row], limiters[row] = r.Key, r.Limiter
		tokens[row], refills[row], bursts[row] = scale.token, scale.refill, scale.burst
		wants[row], units[row] = r.Tokens, max(r.Unit, 1)
	}
	rows, err := db.Query(ctx, tokenBucketTakeMany, keys, limiters, tokens, refills, bursts, wants, units, relaxes(db, requests))
	if err != nil {
		return err
	}
	row := 0
	var granted, debt, atUS int64
	_, err = pgx.ForEachRow(rows, []any{&granted, &debt, &atUS}, func() error {
		r := requests[order[row]]
		decisions[order[row]] = bucket{debt: debt, atUS: atUS, scale: scaleOf(r.Limit)}.decision(r, granted)
		row++
		return nil
	})
	return err
}

// Reset deletes the row.
func (TokenBucket) Reset(ctx context.Context, db pglimit.DB, limiter, key string) error {
	return tokenBucketTable.resetKey(ctx, db, limiter, key)
}

// Sweep walks the table by pages.
func (TokenBucket) Sweep(ctx context.Context, db pglimit.DB, from pglimit.Cursor, limit int) (pglimit.Swept, error) {
	return tokenBucketTable.sweepBatch(ctx, db, from, limit)
}

package strategies

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/bucket"
	"github.com/pglimit/ratelimit/strategies/internal/call"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// TokenBucket decides in a stored function, in one round trip. One bucket: a look, which may
// deny, then a write, which decides again by the row as it is when it is locked. Several: an
// update of those that can grant, then a look at the rest.
//
//   - Locks: for a grant, the row, until the commit; for a denial nothing, unless the
//     tokens went to another between the look and the write.
//   - Round trips: one, for one request or many. Requests for several buckets, of
//     whatever limits, are one call, which may take nothing if a bucket changes or is held
//     meanwhile: ErrNothingTaken. In the caller's transaction each is a call of its own.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: being the default. Any limit, many keys in one call, decided by a clock
//     that is hardly older than the row's lock; it can lease.
//   - Bad at: nothing that another strategy here is good at, but it needs the stored
//     function, so its logic changes by migration only.
//
// The zero value is ready to use, concurrently.
type TokenBucket struct{}

var _ Strategy = TokenBucket{}

var (
	//go:embed sql/token_bucket/take.sql
	tokenBucketTakeFile string

	tokenBucketTable = rows.NewTable("token_bucket", "")
	tokenBucketTake  = call.Statement(tokenBucketTakeFile, "token_bucket")
)

// Name is token_bucket.
func (TokenBucket) Name() string { return "token_bucket" }

// Check takes any limit.
func (TokenBucket) Check(rate.Limit) error { return nil }

// Take decides in one round trip. In the caller's transaction requests for several buckets
// take one each, so that none is refused because another transaction was faster.
func (s TokenBucket) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := call.Validate(s, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	if len(requests) == 1 || !session.Autocommits() {
		return call.Each(ctx, session, requests, takeTokens)
	}
	m, err := newMany(requests)
	if err != nil {
		return nil, err
	}
	decisions, how := make([]rate.Decision, len(requests)), call.MannerOf(session, requests)
	if len(m.keys) == 1 {
		err = m.takeInTurn(ctx, session, requests, decisions, how)
	} else {
		// Once more, because what it was overtaken by is there now.
		err = call.Again(ctx, session, 2, func() error { return m.take(ctx, session, requests, decisions, how) })
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == call.ReadOnlyTransaction {
		return call.Each(ctx, session, requests, takeTokens) // denies, if all can be denied
	}
	if err != nil {
		return nil, call.Explain(err)
	}
	return decisions, nil
}

// takeTokens decides one request.
func takeTokens(ctx context.Context, session rate.Session, r *rate.Request, how call.Manner) (rate.Decision, error) {
	if r.Tokens == 0 {
		return tokenBucketTable.Peek(ctx, session, r)
	}
	granted, nowNS, after, err := takeFromOne(ctx, session, r, r.Tokens, r.Unit, nil, nil, how)
	if err != nil {
		return rate.Decision{}, err
	}
	return after.Decision(r, nowNS, granted), nil
}

// takeFromOne asks for tokens of the bucket of r.
func takeFromOne(ctx context.Context, session rate.Session, r *rate.Request, want, unit int64, wants, units []int64, how call.Manner) (granted, nowNS int64, after bucket.Bucket, err error) {
	err = session.Row(ctx, tokenBucketTake,
		[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), want, unit, wants, units, how.Relaxed, how.Impatient},
		&granted, &nowNS, &after.FullNS, &after.TokenNS, &after.AtNS, &after.LeasedNS, &after.UntilNS)
	return granted, max(nowNS, after.AtNS), after, err // not before the grants that it counts
}

// GiveBack gives back, each row in an update of its own.
func (s TokenBucket) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return tokenBucketTable.GiveBack(ctx, session, s, refunds)
}

// Reset deletes the row.
func (TokenBucket) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	return tokenBucketTable.Reset(ctx, session, limiter, key)
}

// ResetAll deletes the rows of the limiter.
func (TokenBucket) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return tokenBucketTable.ResetAll(ctx, session, limiter)
}

// Sweep walks the table by pages.
func (TokenBucket) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return tokenBucketTable.Sweep(ctx, session, from, limit)
}

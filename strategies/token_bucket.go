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

// TokenBucket decides in a stored function, in one round trip. For one bucket, the function
// first looks, and may deny. Then it writes, and decides again by the row as it is once it is
// locked. For several buckets, it updates the rows that can grant, then looks at the rest.
//
//   - Locks: a grant locks the row until the commit. A denial locks nothing, unless
//     another call took the tokens between the look and the write.
//   - Round trips: one, for one request or many. Requests for several buckets, even with
//     different limits, are one call. If another call changes or holds one of the buckets
//     meanwhile, that call may take nothing and fail with ErrNothingTaken. In the caller's
//     transaction each request is a call of its own.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: being the default. Any limit, many keys in one call, a clock that is read
//     only shortly before the row is locked, and leases.
//   - Bad at: nothing that another strategy here is good at. But it needs stored
//     functions, so only a migration can change its logic.
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

// Take decides in one round trip. In the caller's transaction each request takes one of its
// own, so that none fails because another transaction was faster.
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
		// A second try sees the change by another call that made the first one fail.
		err = call.Again(ctx, session, 2, func() error { return m.take(ctx, session, requests, decisions, how) })
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == call.ReadOnlyTransaction {
		return call.Each(ctx, session, requests, takeTokens) // succeeds if all are denied: that writes nothing
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

// takeFromOne asks for tokens of the bucket of r: want in multiples of unit, or, if wants is
// not nil, what several requests want, in turn.
func takeFromOne(ctx context.Context, session rate.Session, r *rate.Request, want, unit int64, wants, units []int64, how call.Manner) (granted, nowNS int64, after bucket.Bucket, err error) {
	err = session.Row(ctx, tokenBucketTake,
		[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), want, unit, wants, units, how.Relaxed, how.Impatient},
		&granted, &nowNS, &after.FullNS, &after.TokenNS, &after.AtNS, &after.LeasedNS, &after.UntilNS, nil)
	return granted, max(nowNS, after.AtNS), after, err // never dated before the grants that it counts
}

// GiveBack gives tokens back, with one update for each refund.
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

package strategies

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// TokenBucket decides in a stored function, in one round trip. The usual case is one update of the
// rows that have enough tokens, which checks them again once they are locked. Otherwise, the
// function looks at the rows, and denies, or takes what it has seen behind a lock.
//
//   - Locks: a grant locks the row until the commit. A denial locks nothing, unless
//     another call took the tokens between the check and the lock.
//   - Round trips: one, for one request or many. Requests for several buckets, even with
//     different limits, are one call. If another call changes or holds one of the buckets
//     meanwhile, that call may take nothing and fail with ErrNothingTaken. In the caller's
//     transaction each request is a call of its own.
//   - Rows: one per key that took tokens since it was last full and swept. One more for each ID
//     that was granted tokens (TakeOnce), and for each key with denials (TakeOrBlock).
//   - Good at: being the default. Any limit, many keys in one call, a clock that is read
//     only shortly before the row is locked, leases, and groups of buckets that are taken
//     from all or nothing.
//   - Bad at: nothing that another strategy here is good at. But it needs stored
//     functions, so only a migration can change its logic.
//
// The zero value is ready to use, concurrently.
type TokenBucket struct{}

var _ Strategy = TokenBucket{}

var (
	//go:embed sql/token_bucket/take.sql
	tokenBucketTakeFile string
	//go:embed sql/token_bucket/look.sql
	tokenBucketLookFile string
	//go:embed sql/token_bucket/give_back.sql
	tokenBucketGiveBackFile string
	//go:embed sql/token_bucket/reset.sql
	tokenBucketResetFile string

	tokenBucketTable    = rows.NewTable("token_bucket", "")
	tokenBucketTake     = call.Statement(tokenBucketTakeFile, "token_bucket")
	tokenBucketLook     = call.Statement(tokenBucketLookFile, "token_bucket")
	tokenBucketGiveBack = call.Statement(tokenBucketGiveBackFile, "token_bucket")
	tokenBucketReset    = call.Statement(tokenBucketResetFile, "token_bucket")
)

// Name is token_bucket.
func (TokenBucket) Name() string { return "token_bucket" }

// Check takes any limit.
func (TokenBucket) Check(rate.Limit) error { return nil }

// Rule is that of a token bucket.
func (TokenBucket) Rule() rate.Rule { return bucket.Rule{} }

// TakesAhead makes it a Reserver. While tokens are leased, a request for more than the rest of the
// burst takes none ahead.
func (TokenBucket) TakesAhead() {}

// Take decides in one round trip. In the caller's transaction each request takes one of its
// own, so that none fails because another transaction was faster.
func (s TokenBucket) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := call.Validate(s, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	if len(requests) == 1 {
		d, err := call.Alone(ctx, session, &requests[0], takeTokens)
		if err != nil {
			return nil, err
		}
		return []rate.Decision{d}, nil
	}
	if !session.Autocommits() {
		return call.Each(ctx, session, s, requests, takeTokens)
	}
	m, err := newMany(requests)
	if err != nil {
		return nil, err
	}
	decisions, how := make([]rate.Decision, len(requests)), call.MannerOf(session, requests)
	if len(m.keys) == 1 && m.asks[0] > 0 {
		err = call.Again(ctx, session, 5, func() error { return m.takeInTurn(ctx, session, requests, decisions, how) })
	} else {
		// A second try sees the change by another call that made the first one fail.
		err = call.Again(ctx, session, 2, func() error { return m.take(ctx, session, requests, decisions, how) })
	}
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == call.ReadOnlyTransaction {
		return call.Each(ctx, session, s, requests, takeTokens) // succeeds if all are denied: that writes nothing
	}
	if err != nil {
		return nil, call.Explain(err)
	}
	return decisions, nil
}

// takeTokens decides one request.
func takeTokens(ctx context.Context, session rate.Session, r *rate.Request, how call.Manner) (rate.Decision, error) {
	if r.Tokens == 0 {
		nowNS, _, b, err := lookAtOne(ctx, session, r)
		return b.Decision(r, b.Dated(nowNS), 0), err
	}
	var wants, units, aheads []int64
	if r.Ahead > 0 {
		wants, units, aheads = []int64{r.Tokens}, []int64{r.Unit}, []int64{int64(r.Ahead)}
	}
	granted, nowNS, after, err := takeFromOne(ctx, session, r, r.Tokens, r.Unit, wants, units, aheads, how)
	if err != nil {
		return rate.Decision{}, err
	}
	return after.Decision(r, after.Dated(nowNS), granted), nil
}

// takeFromOne asks for tokens of the bucket of r: want in multiples of unit, or, if wants is
// not nil, what several requests want, in turn, which is want in all.
func takeFromOne(ctx context.Context, session rate.Session, r *rate.Request, want, unit int64, wants, units, aheads []int64, how call.Manner) (granted, nowNS int64, after bucket.Bucket, err error) {
	err = session.Row(ctx, tokenBucketTake,
		[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), want, unit, wants, units, how.Relaxed, how.Impatient, aheads},
		&granted, &nowNS, &after.FullNS, &after.TokenNS, &after.AtNS, &after.LeasedNS, &after.UntilNS, nil)
	return granted, nowNS, after, err
}

// lookAtOne reads the bucket of r, and for how long the key is blocked.
func lookAtOne(ctx context.Context, session rate.Session, r *rate.Request) (nowNS, blockedNS int64, b bucket.Bucket, err error) {
	err = session.Row(ctx, tokenBucketLook, []any{r.Key, r.Limiter}, &nowNS, &blockedNS, &b.FullNS, &b.TokenNS, &b.AtNS, &b.LeasedNS, &b.UntilNS)
	return nowNS, blockedNS, b, err
}

// GiveBack gives tokens back, with one call for each refund.
func (s TokenBucket) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, s, refunds, tokenBucketGiveBack, rows.GiveBackArgs)
}

// Reset deletes the row, and that of the key's denials, which ends its block. What IDs were granted
// is kept: a request that is sent again gets its first decision.
func (TokenBucket) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	return rows.Reset(ctx, session, limiter, key, tokenBucketReset)
}

// ResetAll deletes the rows of the limiter, as Reset does.
func (TokenBucket) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	buckets, err := tokenBucketTable.ResetAll(ctx, session, limiter)
	if err != nil {
		return buckets, err
	}
	blocks, err := tokenBucketBlocks.ResetAll(ctx, session, limiter)
	return buckets + blocks, err
}

// Sweep walks the table by pages, together with those of IDs and blocks.
func (TokenBucket) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return tokenBucketTable.Sweep(ctx, session, from, limit, tokenBucketAnswers, tokenBucketBlocks)
}

package strategies

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
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
//     that was granted tokens (Request.ID), and for each key with denials (Request.Block).
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
	tokenBucketTable     = rows.NewTable("token_bucket")
	tokenBucketTake      = statement("token_bucket/take.sql")
	tokenBucketTakeAhead = statement("token_bucket/take_ahead.sql")
	tokenBucketLook      = statement("token_bucket/look.sql")
	tokenBucketGiveBack  = statement("token_bucket/give_back.sql")
	tokenBucketReset     = statement("token_bucket/reset.sql")

	tokenBucketAnswers     = rows.NewTable("token_bucket_answers")
	tokenBucketBlocks      = rows.NewTable("token_bucket_blocks")
	tokenBucketTakeOnce    = statement("token_bucket/take_once.sql")
	tokenBucketTakeOrBlock = statement("token_bucket/take_or_block.sql")
)

// Name is token_bucket.
func (TokenBucket) Name() string { return "token_bucket" }

// Check takes any limit, and any request. While tokens are leased, a request for more than the rest
// of the burst takes none ahead. Nothing can be taken ahead in a window of the calendar.
func (TokenBucket) Check(r *rate.Request) error {
	if r.Ahead > 0 && r.Limit.Calendar != "" {
		return rate.ErrAheadInCalendar
	}
	return nil
}

// Rule is that of a token bucket.
func (TokenBucket) Rule() rate.Rule { return bucket.Rule{} }

// Take decides in one round trip. In the caller's transaction each request takes one of its
// own, so that none fails because another transaction was faster; a group takes one, too.
func (s TokenBucket) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := rate.ValidateCall(s, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	grouped := slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Group != 0 })
	switch r := &requests[0]; {
	case len(requests) > 1 && (grouped || session.Autocommits()):
		return takeMany(ctx, session, requests, grouped)
	case len(requests) > 1:
		return postgres.Each(ctx, session, s, requests, takeOne)
	default:
		return postgres.Alone(ctx, session, r, takeOne)
	}
}

// takeOne decides one request. A denial of one with a Block is counted in a row of its own beside the bucket, which
// it locks after that. If the database's clock steps back, a key stays blocked for as long as it was when that row
// was last written; if it steps forward, the block ends sooner.
func takeOne(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var take rate.Statement
	var numbers []int64
	var blockedNS int64
	switch b := r.Block; {
	case r.ID != "":
		return takeOnce(ctx, session, r, how)
	case r.Tokens == 0:
		take = rate.Statement{
			SQL: tokenBucketLook, Args: []any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), calendarOf(r)}, Into: []any{&numbers, nil},
		}
		if b != nil {
			take.Into[1] = &blockedNS
		}
	case b != nil:
		take = rate.Statement{SQL: tokenBucketTakeOrBlock, Args: []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, how.Patience,
			b.After, int64(b.Within), int64(b.For), int64(b.Max), int64(b.Forget), how.Relaxed, calendarOf(r),
		}, Into: []any{&numbers, &blockedNS}}
	default:
		take = takeStatement(r, how, &numbers)
	}
	if err := session.Row(ctx, take.SQL, take.Args, take.Into...); err != nil {
		return rate.Decision{}, err
	}
	d := decisionOf(r, numbers)
	if blockedNS > 0 {
		d.Allowed, d.Blocked, d.BlockedFor = false, true, time.Duration(blockedNS)
		d.RetryAfter = max(d.RetryAfter, d.BlockedFor)
	}
	return d, nil
}

// takeOnce decides a request with an ID. A grant is kept beside the bucket, in the transaction of the
// take: both are there, or neither. A later request with the same ID locks nothing.
//
// If the database's clock steps back, an ID is kept for longer, at most for another IDTTL from the
// next request with it. If the clock steps forward, it is kept for less.
func takeOnce(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var numbers []int64
	var windowNS int64 // of the grant
	err := session.Row(ctx, tokenBucketTakeOnce, []any{
		r.Key, r.Limiter, r.ID, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.IDTTL.Nanoseconds(), how.Patience, how.Relaxed, calendarOf(r),
	}, &numbers, &windowNS)
	if err != nil {
		return rate.Decision{}, err
	}
	granted, tokenNS := numbers[1], numbers[3]
	if granted > 0 && granted != r.Tokens {
		return rate.Decision{}, &rate.RequestError{Field: "ID", Why: fmt.Sprintf(
			"is %q: a request with this ID was granted %d tokens, and this one is for %d (give each request an ID of its own)", r.ID, granted, r.Tokens)}
	}
	asked := *r
	if bucketOf(numbers[2:]).InCalendar() {
		if r.Limit.Calendar != "" {
			asked.Limit.Tokens, asked.Limit.Burst = max(r.Limit.Tokens, windowNS), windowNS
		}
	} else if granted > 0 && (tokenNS != int64(r.Limit.Token()) || windowNS != int64(r.Limit.Window())) { // the limit has changed since the grant
		asked.Limit = rate.Every(time.Duration(tokenNS)).WithBurst(windowNS / tokenNS)
	}
	d := decisionOf(&asked, numbers)
	if asked.Limit != r.Limit {
		d.Limit = asked.Limit
	}
	return d, nil
}

// takeStatement takes from one bucket, perhaps ahead.
func takeStatement(r *rate.Request, how postgres.Manner, into *[]int64) rate.Statement {
	if r.Ahead > 0 {
		return rate.Statement{SQL: tokenBucketTakeAhead, Args: []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.Unit, int64(r.Ahead), how.Patience, calendarOf(r), how.Relaxed,
		}, Into: []any{into}}
	}
	most := r.Limit.Burst / r.Unit * r.Unit // the price of more may be no bigint, and a plan for this number alone works it out
	return rate.Statement{SQL: tokenBucketTake, Args: []any{
		r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), min(r.Tokens, most), r.Unit, how.Patience, how.Relaxed, calendarOf(r),
	}, Into: []any{into}}
}

// calendarOf the request's limit is null for a token bucket.
func calendarOf(r *rate.Request) *string {
	if r.Limit.Calendar == "" {
		return nil
	}
	return &r.Limit.Calendar
}

// decisionOf reads the time of a decision, the tokens granted, and the bucket's row after it.
func decisionOf(r *rate.Request, numbers []int64) rate.Decision {
	b := bucketOf(numbers[2:])
	return b.Decision(r, b.Dated(numbers[0]), numbers[1])
}

// bucketOf reads a row.
func bucketOf(numbers []int64) bucket.Row {
	return bucket.Row{FullNS: numbers[0], TokenNS: numbers[1], AtNS: numbers[2], LeasedNS: numbers[3], UntilNS: numbers[4]}
}

// GiveBack gives tokens back, with one call for each refund.
func (s TokenBucket) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, s, refunds, tokenBucketGiveBack, func(r rate.Refund, relaxed bool) []any {
		return append(rows.GiveBackArgs(r, relaxed), calendarOf(&r.Request))
	})
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

// Ready says what keeps the session from granting, such as a read-only server or a right that is missing. It
// writes nothing.
func (TokenBucket) Ready(ctx context.Context, session rate.Session) error {
	return rows.Ready(ctx, session, tokenBucketTable, tokenBucketAnswers, tokenBucketBlocks)
}

// Sweep walks the table by pages, together with those of IDs, blocks and permits (see package semaphore).
func (TokenBucket) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return tokenBucketTable.Sweep(ctx, session, from, limit, tokenBucketAnswers, tokenBucketBlocks, rows.NewTable("permits"))
}

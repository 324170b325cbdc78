package strategies

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// Upsert decides in one statement, INSERT ... ON CONFLICT DO UPDATE ... WHERE ...
// RETURNING, after a plain read that saves denials from locking.
//
//   - Locks: a grant locks the row. A denial locks nothing, unless another call took
//     the tokens between the read and the lock.
//   - Round trips: one; one more each time the row changed between the read and the
//     lock. Several requests in one call go one by one through a transaction. In the caller's
//     transaction, two more for a savepoint.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: a single statement to read and to reason about, no stored function.
//   - Bad at: many keys in one call, and a table that grows fast. A session may have kept a plan
//     that reads the whole table, from when it was small, until autoanalyze comes by.
//
// It is the third design of the write-up, which kept the time of the last request: the
// same thing for a burst of one. If the first take of a key waits longer than 100 ms for another
// one that is then rolled back, it is tried again, at most five times in all. After that it
// fails with ErrNothingTaken.
//
// The zero value is ready to use, concurrently.
type Upsert struct{}

var _ Strategy = Upsert{}

var (
	//go:embed sql/upsert/take.sql
	upsertTakeFile string

	upsertTable = rows.NewTable("upsert", "")
	upsertTake  = postgres.Statement(upsertTakeFile, "upsert")
)

// Name is upsert.
func (Upsert) Name() string { return "upsert" }

// Check takes any limit, and requests Ahead: these have a longer window.
func (s Upsert) Check(r *rate.Request) error {
	but := *r
	but.Ahead = 0
	return rate.Unsupported(s.Name(), &but)
}

// Rule is that of a token bucket.
func (Upsert) Rule() rate.Rule { return bucket.Rule{} }

// Take decides in one round trip.
func (s Upsert) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return postgres.Each(ctx, session, s, requests, upsertOne)
}

func upsertOne(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	if r.Tokens == 0 {
		return upsertTable.Peek(ctx, session, r)
	}
	for tries := 1; ; tries++ {
		var granted *int64
		var nowNS int64
		var after bucket.Bucket
		err := session.Row(ctx, upsertTake,
			[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window() + r.Ahead), r.Tokens, r.Unit, how.Relaxed, how.Patience},
			append([]any{&granted, &nowNS}, append(after.Fields(), nil)...)...)
		switch {
		case err != nil:
			return rate.Decision{}, err
		case granted == nil:
			// The row changed between the read and the lock: another request took tokens, or
			// a token came back. A new statement sees that. The loop ends, because tokens
			// that come back faster than a statement takes do not count as a change. (In a transaction that
			// sees no changes of others, it would not.)
			if tries == 100 && !session.Autocommits() {
				return rate.Decision{}, postgres.ErrKeepsChanging
			}
		case *granted == 0 && after.Ahead(nowNS):
			if _, err := session.Pipeline(ctx, how.Statements(upsertTable.Step(r))...); err != nil {
				return rate.Decision{}, err
			}
		default:
			return after.Decision(r, nowNS, *granted), nil
		}
	}
}

// GiveBack gives tokens back, with one update for each refund.
func (s Upsert) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return upsertTable.GiveBack(ctx, session, s, refunds)
}

// Reset deletes the row.
func (Upsert) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	return upsertTable.Reset(ctx, session, limiter, key)
}

// ResetAll deletes the rows of the limiter.
func (Upsert) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return upsertTable.ResetAll(ctx, session, limiter)
}

// Ready says what keeps the session from granting, such as a read-only server or a right that is missing. It
// writes nothing.
func (Upsert) Ready(ctx context.Context, session rate.Session) error {
	return rows.Ready(ctx, session, upsertTable)
}

// Sweep walks the table by pages.
func (Upsert) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return upsertTable.Sweep(ctx, session, from, limit)
}

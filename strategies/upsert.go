package strategies

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/bucket"
	"github.com/pglimit/ratelimit/strategies/internal/call"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// Upsert decides in one statement, INSERT ... ON CONFLICT DO UPDATE ... WHERE ...
// RETURNING, behind a plain read that spares denials the lock.
//
//   - Locks: for a grant, the row; for a denial nothing, unless the tokens went to
//     somebody else between the read and the lock: then the row.
//   - Round trips: one; one more each time that somebody else was faster as above.
//     Several requests in one call go one by one through a transaction.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: a single statement to read and to reason about, no stored function.
//   - Bad at: many keys in one call.
//
// It is the third design of the write-up, which kept the time of the last request;
// that is the case of a burst of one. A first take of a key that had to wait for another,
// which was rolled back, fails with ErrNothingTaken.
//
// The zero value is ready to use, concurrently.
type Upsert struct{}

var _ Strategy = Upsert{}

var (
	//go:embed sql/upsert/take.sql
	upsertTakeFile string

	upsertTable = rows.NewTable("upsert", "")
	upsertTake  = call.Statement(upsertTakeFile, "upsert")
)

// Name is upsert.
func (Upsert) Name() string { return "upsert" }

// Check takes any limit.
func (Upsert) Check(rate.Limit) error { return nil }

// Take decides in one round trip.
func (s Upsert) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := call.Validate(s, requests); err != nil {
		return nil, err
	}
	return call.Each(ctx, session, requests, upsertOne)
}

func upsertOne(ctx context.Context, session rate.Session, r *rate.Request, how call.Manner) (rate.Decision, error) {
	if r.Tokens == 0 {
		return upsertTable.Peek(ctx, session, r)
	}
	for {
		var granted *int64
		var nowNS int64
		var after bucket.Bucket
		err := session.Row(ctx, upsertTake,
			[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.Unit, how.Relaxed, how.Impatient},
			append([]any{&granted, &nowNS}, append(after.Fields(), nil)...)...)
		switch {
		case err != nil:
			return rate.Decision{}, err
		case granted == nil:
			// Somebody else took what the read had seen. A new statement sees that, and each
			// turn of this loop means a grant for somebody.
		case *granted == 0 && after.Ahead(nowNS):
			if _, err := session.Exec(ctx, upsertTable.Step, r.Key, r.Limiter); err != nil {
				return rate.Decision{}, err
			}
		default:
			return after.Decision(r, nowNS, *granted), nil
		}
	}
}

// GiveBack gives back, each row in an update of its own.
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

// Sweep walks the table by pages.
func (Upsert) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return upsertTable.Sweep(ctx, session, from, limit)
}

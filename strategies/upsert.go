package strategies

import (
	"context"

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
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: a single statement to read and to reason about, no stored function.
//   - Bad at: many keys in one call, and a table that grows fast. A session may have kept a plan
//     that reads the whole table, from when it was small, until autoanalyze comes by.
//
// It is the third design of the write-up, which kept the time of the last request: the
// same thing for a burst of one.
//
// The zero value is ready to use, concurrently.
type Upsert struct{ stored[Upsert] }

var _ Strategy = Upsert{}

var (
	upsertTable = rows.NewTable("upsert")
	upsertTake  = statement("upsert/take.sql")
)

func (Upsert) table() *rows.Table { return upsertTable }

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
	var row bucket.Row
	if r.Tokens == 0 {
		return rows.Peek(ctx, session, r, upsertTable.Look, &row)
	}
	args := []any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window() + r.Ahead), r.Tokens, r.Unit, how.Relaxed, how.Patience}
	return rows.Take(ctx, session, r, upsertTake, args, &row, func() []rate.Statement { return how.Statements(upsertTable.Step(r)) })
}

// GiveBack gives tokens back, with one update for each refund.
func (s Upsert) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return upsertTable.GiveBack(ctx, session, s, refunds)
}

package strategies

import (
	"context"
	"errors"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// ForUpdateNowait locks the row or gives up at once, decides in Go, writes and
// commits.
//
//   - Locks: a grant locks the row, from the first round trip to the end of the second.
//     A denial locks nothing, unless another call took the tokens between the look and
//     the lock. It never waits for a row. If another call holds the row, the request is
//     denied and the decision says Contended, whether or not the tokens were there.
//   - Round trips: two: begin, look and lock; then write and commit.
//   - Rows: one per key that took tokens since it was last full and swept.
//   - Good at: never queueing. A slow holder of a row costs the other callers a denial,
//     not their time.
//   - Bad at: hot keys. Most requests that could have been granted are denied there as
//     contended, because the lock is held for a network round trip.
//
// It is the first design of the write-up, which kept the time of the last request: the
// same thing for a burst of one. Each contended denial is an ERROR in the server's log.
//
// There is one exception to "never waits": of two first requests for a key, the second
// waits for the commit of the first.
//
// The zero value is ready to use, concurrently.
type ForUpdateNowait struct{ stored[ForUpdateNowait] }

var _ Strategy = ForUpdateNowait{}

var (
	nowaitTable  = rows.NewTable("for_update_nowait")
	nowaitLock   = statement("for_update_nowait/lock.sql")
	nowaitUpdate = statement("for_update_nowait/update.sql")
	nowaitInsert = statement("for_update_nowait/insert.sql")
)

func (ForUpdateNowait) table() *rows.Table { return nowaitTable }

// Check takes any limit.
func (s ForUpdateNowait) Check(r *rate.Request) error { return rate.Unsupported(s.Name(), r) }

// Rule is that of a token bucket.
func (ForUpdateNowait) Rule() rate.Rule { return bucket.Rule{} }

// Take decides in two round trips.
func (s ForUpdateNowait) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return postgres.Each(ctx, session, s, requests, lockAndTake)
}

func lockAndTake(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	if r.Tokens == 0 {
		return rows.Peek(ctx, session, r, nowaitTable.Look, new(bucket.Row))
	}
	var decision rate.Decision
	err := postgres.Transact(ctx, session, func(b *postgres.Transaction) (err error) {
		for decided := false; err == nil && !decided; {
			decision, decided, err = nowait{b}.lockAndTake(ctx, r, how)
		}
		return err
	})
	return decision, err
}

// nowait is a transaction in which one request is decided.
type nowait struct{ *postgres.Transaction }

// sighting is a row as it was read, and the clock at that moment.
type sighting struct {
	bucket bucket.Row
	nowNS  int64
}

func (s sighting) decision(r *rate.Request, granted int64) rate.Decision {
	return s.bucket.Decision(r, s.nowNS, granted)
}

// lockAndTake tries once to decide the request. It does not decide, and must be called again,
// if another call made, swept, reset or emptied the row between the look and the lock.
func (b nowait) lockAndTake(ctx context.Context, r *rate.Request, how postgres.Manner) (d rate.Decision, decided bool, err error) {
	seen, locked, err := b.lookAndLock(ctx, r)
	if errors.Is(err, errContended) {
		d = seen.decision(r, 0)
		d.Contended = true
		return d, true, b.Undo(ctx)
	}
	if err != nil {
		return d, false, err
	}
	row := seen
	if locked != nil {
		row = *locked
	}
	granted := row.bucket.Grantable(row.nowNS, r)
	if locked == nil && seen.bucket.TokenNS > 0 && (granted > 0 || seen.bucket.Ahead(seen.nowNS)) {
		return d, false, b.Undo(ctx)
	}
	switch after := row.bucket.Stepped(row.nowNS); {
	case granted > 0:
		if locked == nil {
			made, err := b.insert(ctx, r, granted, how)
			return made.decision(r, granted), made.nowNS > 0, err
		}
		after = row.bucket.Take(row.nowNS, granted, r.Limit)
		return after.Decision(r, row.nowNS, granted), true, b.update(ctx, r, after, how)
	case locked != nil && after != row.bucket: // corrected after a step of the clock: even a denial writes it
		return row.decision(r, 0), true, b.update(ctx, r, after, how)
	}
	return row.decision(r, 0), true, b.Keep(ctx)
}

var errContended = errors.New("strategies: the row is locked")

// lookAndLock is the first round trip: open, look, lock, and read the clock again, after
// the lock. locked is nil if no row was locked.
func (b nowait) lookAndLock(ctx context.Context, r *rate.Request) (seen sighting, locked *sighting, err error) {
	unit := max(r.Unit, 1)
	var row sighting
	done, err := b.Begin(ctx,
		postgres.LockForWrites("for_update_nowait"),
		rate.Statement{SQL: nowaitTable.Look, Args: []any{r.Key, r.Limiter}, Into: append(append([]any{&seen.nowNS}, seen.bucket.Fields()...), nil)},
		rate.Statement{SQL: nowaitLock, Args: []any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()) - unit*int64(r.Limit.Token())}, Into: row.bucket.Fields()},
		rate.Statement{SQL: "select pglimit.clock_ns()", Into: []any{&row.nowNS}},
	)
	const looked = 2 // of the statements above
	if done == looked && postgres.Is(err, postgres.LockNotAvailable) {
		err = errContended
	}
	if row.bucket.TokenNS > 0 {
		locked = &row
	}
	return seen, locked, err
}

// update is the second round trip: it writes the locked row and commits.
func (b nowait) update(ctx context.Context, r *rate.Request, after bucket.Row, how postgres.Manner) error {
	return b.keepWith(ctx, how, rate.Statement{SQL: nowaitUpdate, Args: []any{r.Key, r.Limiter, after.FullNS, after.TokenNS, after.AtNS}})
}

// insert is the second round trip for a key without a row. made.nowNS is 0 if another call
// inserted the row first.
func (b nowait) insert(ctx context.Context, r *rate.Request, tokens int64, how postgres.Manner) (made sighting, err error) {
	tokenNS := int64(r.Limit.Token())
	err = b.keepWith(ctx, how, how.Statements(rate.Statement{
		SQL: nowaitInsert, Args: []any{r.Key, r.Limiter, tokenNS, tokens * tokenNS},
		Into: append(append([]any{&made.nowNS}, made.bucket.Fields()...), nil),
	})...)
	return made, err
}

func (b nowait) keepWith(ctx context.Context, how postgres.Manner, statements ...rate.Statement) error {
	if how.Relaxed {
		statements = append(statements, rate.Statement{SQL: "select pg_catalog.set_config('synchronous_commit', 'off', true)"})
	}
	return b.Keep(ctx, statements...)
}

// GiveBack gives tokens back, with one update for each refund.
func (s ForUpdateNowait) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return nowaitTable.GiveBack(ctx, session, s, refunds)
}

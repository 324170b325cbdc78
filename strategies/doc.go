// Package strategies has the ways to decide a rate limit inside Postgres.
//
//	strategy            trips  locks                   rows                 limits     good at
//	TokenBucket         1      the row, for a grant    one per active key   any        everything; many keys in one call
//	Upsert              1      the row, for a grant    one per active key   any        no stored function needed on the way
//	ForUpdateNowait     2      a row, never waits      one per active key   any        never queueing behind a slow holder
//	ExclusionRange      1      an index entry          one per grant        burst = 1  letting a constraint vouch for the rule
//	SlidingWindow       1      the row, for a grant    one per active key   any        never more than N in any window
//	SlidingLog          1      the row, for a grant    one per active key   N <= 1000  the same, to the grant
//	WarmUp              1      the row, for a grant    one per active key   any        a rate that rises after a pause
//
// All keep the same promises, which strategytest checks. They never grant more than the limit. They deny only if the
// tokens are not there; but [ForUpdateNowait] also denies while another call holds the row. A denial writes nothing,
// except to correct a row after the clock stepped back, to join its cells, or with SlidingLog.CountDenied. Nothing
// deadlocks. The first three count the same way and differ in how they lock. [SlidingWindow], [SlidingLog] and
// [WarmUp] grant less: see there. Limiters of different strategies do not share buckets.
//
// A bucket is one number, full: the time at which it is full again, in nanoseconds. A token
// costs [rate.Limit.Token] nanoseconds, and an empty bucket fills in [rate.Limit.Window]. So
// n tokens are there if max(full, now) + n × token ≤ now + window, and taking them sets
// full = max(full, now) + n × token. This is the token bucket in the form of GCRA (ATM
// Forum TM 4.0, the theoretical arrival time). The row also notes the price of a token and
// the time of its last write. They are needed in two cases, in which full alone would
// mislead: the limit has changed, or the clock has stepped back.
//
// Every strategy first reads the row without a lock. That read may deny a request but never
// grants one, because another call may take the tokens meanwhile: grants are decided while
// the row is locked. (A call of TokenBucket for several buckets reads only the rows that it
// could not update, and all of them if it has to plan.) If another call took the tokens
// between the read and the lock, the row was locked for nothing. On a busy key that happens,
// to Upsert perhaps several times in one take.
//
// All but TokenBucket send several requests of one call one by one through a transaction; in the caller's
// transaction, with two more round trips for a savepoint. They make one more round trip each time the row changed
// between the read and the lock. If the first take of a key waits longer than 100 ms for another one that is then
// rolled back, it is tried again, at most five times in all. After that it fails with ErrNothingTaken.
//
// [TokenBucket], [Upsert] and [WarmUp] take tokens before they are there, if a request allows it (Ahead): a
// reservation of the first two is a take with a longer window, n tokens are granted if
// max(full, now) + n × token ≤ now + window + ahead, and they are due at the new full − window.
// If the limit is raised, or the clock steps forward, what was reserved before comes on top of what
// is granted then.
//
// A caller can give back tokens that were granted and not used (GiveBack), minus the tokens
// that were refilled since they were due, or reserved behind them. [TokenBucket] can set tokens
// aside for a process (Lease): nobody else can take them until they are settled or expire. It also
// takes from several buckets all or nothing (Request.Group), charges a request that is sent again only
// once (Request.ID), and blocks keys that are denied too often (Request.Block).
//
// Given a pgx.Tx, a take joins the caller's transaction and is undone with it. Mind the
// order of several takes in one such transaction: two transactions that take from the same
// keys in different orders can deadlock, as with any rows. Strategies are made for READ
// COMMITTED. At a stricter isolation level a take can fail with a serialization error;
// then it has taken nothing.
package strategies

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// Strategy is what each strategy of this package can do.
type Strategy interface {
	rate.Strategy
	rate.GiveBacker
	rate.Resetter
	rate.AllResetter
	rate.Sweeper
}

//go:embed sql
var files embed.FS

// statement returns a statement of the folder sql, for the table that its folder is named after.
func statement(path string) string {
	table, _, _ := strings.Cut(path, "/")
	return postgres.StatementOf(files, path, table)
}

// stored is what all but TokenBucket do alike with their rows, except deciding. The strategy S, which embeds it, names
// its table.
type stored[S interface{ table() *rows.Table }] struct{}

func (stored[S]) kept() *rows.Table {
	var strategy S
	return strategy.table()
}

// Name is that of the table.
func (s stored[S]) Name() string { return s.kept().Name }

// Reset deletes the rows of the key.
func (s stored[S]) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	return s.kept().Reset(ctx, session, limiter, key)
}

// ResetAll deletes the rows of the limiter.
func (s stored[S]) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return s.kept().ResetAll(ctx, session, limiter)
}

// Ready says what keeps the session from granting, such as a read-only server or a right that is missing. It
// writes nothing.
func (s stored[S]) Ready(ctx context.Context, session rate.Session) error {
	return rows.Ready(ctx, session, s.kept())
}

// Sweep walks the table by pages.
func (s stored[S]) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return s.kept().Sweep(ctx, session, from, limit)
}

// All returns all strategies. The one that most people want is the first.
func All() []Strategy {
	return []Strategy{TokenBucket{}, Upsert{}, ForUpdateNowait{}, ExclusionRange{}, SlidingWindow{}, SlidingLog{}, WarmUp{}}
}

// ByName finds a strategy by its Name. If there is none, the error lists all names.
func ByName(name string) (Strategy, error) {
	var names []string
	for _, s := range All() {
		if s.Name() == name {
			return s, nil
		}
		names = append(names, s.Name())
	}
	return nil, fmt.Errorf("strategies: there is no strategy %q, only %s", name, strings.Join(names, ", "))
}

// Package call has the parts that every strategy's call needs: the order of the requests,
// the transaction, the retries, and the meaning of errors.
package call

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Manner says how a call commits and waits. In the caller's transaction it is zero: that
// transaction keeps its own synchronous_commit and lock_timeout.
type Manner struct {
	Own      bool    // the transaction is not the caller's
	Relaxed  bool    // the commit need not wait for the disk
	Patience *string // the call gives up after this time if another call holds a row; nil: it waits
}

// patience is how long an impatient call waits, as a lock_timeout of Postgres.
var patience = "20ms"

// MannerOf returns the manner of a call for the requests. A call for several buckets is
// impatient: while it waits for one row, other calls wait for the rows that it holds.
func MannerOf(session rate.Session, requests []rate.Request) Manner {
	if !session.Autocommits() {
		return Manner{}
	}
	m, impatient := Manner{Own: true, Relaxed: true}, severalBuckets(requests)
	for i := range requests {
		m.Relaxed = m.Relaxed && requests[i].Durability != rate.Durable
		impatient = impatient || requests[i].Impatient
	}
	if impatient {
		m.Patience = &patience
	}
	return m
}

// Statements are those of a transaction in this manner, in which they may wait for a row.
func (m Manner) Statements(statements ...rate.Statement) []rate.Statement {
	if m.Patience != nil {
		return append([]rate.Statement{LosePatience}, statements...)
	}
	return statements
}

// Uncompiled are those of a transaction in this manner that may be slow to plan, but not to run. A statement that is sent
// for each decision has a plan of its own that is not compiled, whatever the role's settings are: one that needs no node that
// the planner may be told to avoid, such as a sort or a nested loop.
func (m Manner) Uncompiled(statements ...rate.Statement) []rate.Statement {
	if m.Own {
		statements = append([]rate.Statement{Uncompiled}, statements...)
	}
	return m.Statements(statements...)
}

// Uncompiled plans the rest of a transaction, which must not be the caller's, for rows that are found by their pages, whatever
// the role's settings are.
var Uncompiled = rate.Statement{SQL: "select pg_catalog.set_config('jit', 'off', true), pg_catalog.set_config('enable_tidscan', 'on', true)"}

// LockForWrites takes the lock that a write takes, before the first read in the transaction: one
// that reads and then writes can deadlock with REINDEX.
func LockForWrites(table string) rate.Statement {
	return rate.Statement{SQL: "lock table pglimit." + table + " in row exclusive mode"}
}

// LosePatience makes the transaction impatient. It must not be the caller's.
var LosePatience = rate.Statement{SQL: "select pg_catalog.set_config('lock_timeout', '" + patience + "', true)"}

func severalBuckets(requests []rate.Request) bool {
	for i := range requests {
		if requests[i].Key != requests[0].Key || requests[i].Limiter != requests[0].Limiter {
			return true
		}
	}
	return false
}

// Order returns the indexes of requests in the order in which every statement locks rows, or
// inserts missing ones: by key, then limiter, bytewise. Requests for the same bucket stay in
// the caller's order.
func Order(requests []rate.Request) []int {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(requests[a].Key, requests[b].Key),
			cmp.Compare(requests[a].Limiter, requests[b].Limiter),
		)
	})
	return order
}

// One decides one request.
type One func(ctx context.Context, session rate.Session, request *rate.Request, how Manner) (rate.Decision, error)

// Alone decides one request with what one sends. In the caller's transaction an error aborts
// that transaction.
func Alone(ctx context.Context, session rate.Session, request *rate.Request, one One) (d rate.Decision, err error) {
	how := MannerOf(session, []rate.Request{*request})
	err = Again(ctx, session, 5, func() error {
		d, err = one(ctx, session, request, how)
		return err
	})
	return d, Explain(err)
}

// Each implements the Take of a strategy with a One. A single request goes straight to the session. Several
// requests go one after another through one transaction, so that nothing is taken if one of them
// fails. In the caller's transaction that is a savepoint, also for a single request, so that it can
// be tried again; but not for a peek.
func Each(ctx context.Context, session rate.Session, strategy rate.Strategy, requests []rate.Request, one One) ([]rate.Decision, error) {
	if err := rate.ValidateCall(strategy, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	decisions := make([]rate.Decision, len(requests))
	again := passes
	if !session.Autocommits() {
		again = isUndone
	}
	if len(requests) == 1 && (session.Autocommits() || requests[0].Tokens == 0) {
		d, err := Alone(ctx, session, &requests[0], one)
		if err != nil {
			return nil, err
		}
		decisions[0] = d
		return decisions, nil
	}
	how := MannerOf(session, requests)
	err := tryAgain(ctx, again, 5, func() error {
		return session.OneConnection(ctx, func(conn rate.Session) error {
			b := BlockOn(conn)
			err := b.each(ctx, strategy.Name(), requests, decisions, how, one)
			if err != nil {
				b.Abandon(ctx)
			}
			return err
		})
	})
	if err != nil {
		return nil, Explain(err)
	}
	return decisions, nil
}

// Again calls take, at most that many times, while it fails with an error after which the next try
// may succeed. In the caller's transaction Again calls take once, because the error has aborted that
// transaction.
func Again(ctx context.Context, session rate.Session, tries int, take func() error) error {
	if !session.Autocommits() {
		return take()
	}
	return tryAgain(ctx, passes, tries, take)
}

// Serialized calls step until ctx ends while Postgres undoes it because another transaction was faster, which it does above
// READ COMMITTED only. In the caller's transaction it calls it once.
func Serialized(ctx context.Context, session rate.Session, step func() error) error {
	if !session.Autocommits() {
		return step()
	}
	return tryAgain(ctx, isUndone, math.MaxInt, step)
}

func tryAgain(ctx context.Context, again func(*pgconn.PgError) bool, tries int, take func() error) (err error) {
	for n := range tries {
		err = take()
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || !again(pg) || ctx.Err() != nil || pg.Code == featureNotSupported && n == 4 {
			break
		}
	}
	return err
}

// isUndone says that another transaction was faster. It is all that passes after a savepoint was undone: the locks from
// before it are still held, and a deadlock would be met again.
func isUndone(pg *pgconn.PgError) bool { return pg.Code == serializationFailure }

// passes says that the next try may succeed.
func passes(pg *pgconn.PgError) bool {
	switch pg.Code {
	case serializationFailure: // it waited too long, or a bucket changed meanwhile
		return true
	case deadlockDetected:
		// Postgres ends a deadlock of a call for several buckets that inserts one, which would give up
		// after a millisecond, if deadlock_timeout is small; it may end any call that queues for a row in
		// it, also one for a single key.
		return true
	case queryCanceled:
		// So Postgres reports a lock_timeout that ends just when the lock is granted, once in some
		// ten thousand. (A statement_timeout has another message. Where messages are translated, this
		// is not recognised, and the caller gets the error.)
		return strings.HasSuffix(pg.Message, "due to user request")
	case featureNotSupported: // the tables were distributed, or a shard moved, under a call that had begun; or it is so for good
		return true
	}
	return false
}

func (b *Block) each(ctx context.Context, table string, requests []rate.Request, decisions []rate.Decision, how Manner, one One) (err error) {
	opening := []rate.Statement{{SQL: b.Open}}
	peeks := func(r rate.Request) bool { return r.Tokens == 0 }
	takes := func(r rate.Request) bool { return r.Tokens > 0 }
	if slices.ContainsFunc(requests, peeks) && slices.ContainsFunc(requests, takes) {
		opening = append(opening, LockForWrites(table))
	}
	done, err := b.Conn.Pipeline(ctx, opening...)
	b.Opened = done > 0
	if err != nil {
		return err
	}
	for _, i := range Order(requests) {
		if decisions[i], err = one(ctx, b.Conn, &requests[i], how); err != nil {
			return err
		}
	}
	return b.Send(ctx, b.Keep)
}

package postgres

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Statement returns the text of a .sql file as it is sent: without comment lines, and with
// $table replaced, because several strategies may share the file.
func Statement(file, table string) string {
	var lines []string
	for line := range strings.Lines(file) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "$table", "pglimit."+table)
}

// StatementOf is Statement for a file of a package's folder sql.
func StatementOf(files embed.FS, path, table string) string {
	text, _ := files.ReadFile("sql/" + path) // a wrong path is an empty statement, which each test of the package meets
	return Statement(string(text), table)
}

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

// Uncompiled are those of a transaction in this manner that may be slow to plan, but not to run. A statement that is
// sent for each decision has a plan of its own that is not compiled, whatever the role's settings are: one that needs
// no node that the planner may be told to avoid, such as a sort or a nested loop.
func (m Manner) Uncompiled(statements ...rate.Statement) []rate.Statement {
	if m.Own {
		statements = append([]rate.Statement{Uncompiled}, statements...)
	}
	return m.Statements(statements...)
}

// Uncompiled plans the rest of a transaction, which must not be the caller's, for rows that are found by their pages,
// whatever the role's settings are.
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
func Alone(ctx context.Context, session rate.Session, request *rate.Request, one One) ([]rate.Decision, error) {
	how := MannerOf(session, []rate.Request{*request})
	var d rate.Decision
	err := Again(ctx, session, 5, func() (err error) {
		d, err = one(ctx, session, request, how)
		return err
	})
	if err != nil {
		return nil, Explain(err)
	}
	return []rate.Decision{d}, nil
}

// Each implements the Take of a strategy with a One. A single request goes straight to the session. Several
// requests go one after another through one transaction, so that nothing is taken if one of them
// fails. In the caller's transaction that is a savepoint, also for a single request, so that it can
// be tried again; but not for a peek.
func Each(ctx context.Context, session rate.Session, strategy rate.Strategy, requests []rate.Request, one One) ([]rate.Decision, error) {
	if err := rate.ValidateCall(strategy, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	peeks := func(r rate.Request) bool { return r.Tokens == 0 }
	if len(requests) == 1 && (session.Autocommits() || peeks(requests[0])) {
		return Alone(ctx, session, &requests[0], one)
	}
	var opening []rate.Statement
	if first := peeks(requests[0]); slices.ContainsFunc(requests, func(r rate.Request) bool { return peeks(r) != first }) {
		opening = []rate.Statement{LockForWrites(strategy.Name())}
	}
	passes := passes
	if !session.Autocommits() {
		passes = isUndone
	}
	how, decisions := MannerOf(session, requests), make([]rate.Decision, len(requests))
	err := again(ctx, passes, 5, func() error {
		return Transact(ctx, session, func(b *Transaction) error {
			_, err := b.Begin(ctx, opening...)
			if err != nil {
				return err
			}
			for _, i := range Order(requests) {
				if decisions[i], err = one(ctx, b.Conn, &requests[i], how); err != nil {
					return err
				}
			}
			return b.Keep(ctx)
		})
	})
	if err != nil {
		return nil, Explain(err)
	}
	return decisions, nil
}

// Transaction is a transaction on one connection, or a savepoint inside the caller's
// transaction. Plain statements open and end it, so that they can share a round trip with
// other statements.
type Transaction struct {
	Conn             rate.Session
	open, keep, undo string
	opened           bool
}

// Transact calls f with a Transaction for the state that the session is in. What f has begun and not kept is undone.
func Transact(ctx context.Context, session rate.Session, f func(*Transaction) error) error {
	return session.OneConnection(ctx, func(conn rate.Session) error {
		b := &Transaction{Conn: conn, open: "savepoint pglimit", keep: "release savepoint pglimit", undo: "rollback to savepoint pglimit; release savepoint pglimit"}
		if conn.Autocommits() {
			b.open, b.keep, b.undo = "begin isolation level read committed", "commit", "rollback"
		}
		defer b.abandon(ctx) // also if f panics
		return f(b)
	})
}

// Begin opens the block and sends the statements, in one round trip. It returns how many of them succeeded.
func (b *Transaction) Begin(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	done, err = b.Conn.Pipeline(ctx, append([]rate.Statement{{SQL: b.open}}, statements...)...)
	b.opened = done > 0
	return max(0, done-1), err
}

// Whole is Begin and Keep in one round trip.
func (b *Transaction) Whole(ctx context.Context, statements ...rate.Statement) error {
	_, err := b.Begin(ctx, append(slices.Clip(statements), rate.Statement{SQL: b.keep})...)
	b.opened = b.opened && err != nil
	return err
}

// Keep sends the statements and ends the block, in one round trip.
func (b *Transaction) Keep(ctx context.Context, statements ...rate.Statement) (err error) {
	if len(statements) == 0 {
		_, err = b.Conn.Exec(ctx, b.keep)
	} else {
		_, err = b.Conn.Pipeline(ctx, append(slices.Clip(statements), rate.Statement{SQL: b.keep})...)
	}
	b.opened = err != nil
	return err
}

// Undo ends the block as if it had not been.
func (b *Transaction) Undo(ctx context.Context) error {
	_, err := b.Conn.Exec(ctx, b.undo)
	b.opened = err != nil
	return err
}

// Doubt leaves the block as it is, because what became of its end is not known.
func (b *Transaction) Doubt() { b.opened = false }

// abandon undoes the block after an error, even if the caller's context has ended. If the
// undoing fails, the connection is lost, and the block with it. A block that was not opened is
// not undone: to roll back to a missing savepoint is an error that would abort the caller's
// transaction.
func (b *Transaction) abandon(ctx context.Context) {
	if b.opened {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = b.Undo(ctx)
	}
}

// ErrKeepsChanging: a row is never again as a statement has seen it, because the caller's transaction sees an old one.
var ErrKeepsChanging = fmt.Errorf("%w: the row has changed, and the transaction's isolation hides how: use READ COMMITTED, or begin the transaction again", rate.ErrNothingTaken)

// Again calls take, at most that many times, while it fails with an error after which the next try
// may succeed. In the caller's transaction Again calls take once, because the error has aborted that
// transaction.
func Again(ctx context.Context, session rate.Session, tries int, take func() error) error {
	if !session.Autocommits() {
		tries = 1
	}
	return again(ctx, passes, tries, take)
}

// Serialized calls step until ctx ends while Postgres undoes it because another transaction was faster, which it does
// above READ COMMITTED only. In the caller's transaction it calls it once.
func Serialized(ctx context.Context, session rate.Session, step func() error) error {
	if !session.Autocommits() {
		return step()
	}
	return again(ctx, isUndone, math.MaxInt, step)
}

func again(ctx context.Context, passes func(error) bool, tries int, take func() error) (err error) {
	for range tries {
		if err = take(); err == nil || !passes(err) || ctx.Err() != nil {
			break
		}
	}
	return err
}

// isUndone says that another transaction was faster. It is all that passes after a savepoint was undone: the locks from
// before it are still held, and a deadlock would be met again.
func isUndone(err error) bool { return Is(err, SerializationFailure) }

// passes says that the next try may succeed.
//
//   - SerializationFailure: it waited too long, or a bucket changed meanwhile.
//   - DeadlockDetected: Postgres ends a deadlock of a call for several buckets that inserts one, which would give up
//     after a millisecond, if deadlock_timeout is small; it may end any call that queues for a row in it, also one for a
//     single key.
//   - FeatureNotSupported: the tables were distributed, or a shard moved, under a call that had begun. (Or it is so for good.)
//   - A query from a query on a shard: so says Citus where a call was sent to the node that had the key until a shard
//     moved. It has no code of its own.
//   - QueryCanceled due to user request: so Postgres reports a lock_timeout that ends just when the lock is granted, once
//     in some ten thousand. (A statement_timeout has another message. Where messages are translated, this is not
//     recognised, and the caller gets the error.)
func passes(err error) bool {
	var pg *pgconn.PgError
	return Is(err, SerializationFailure, DeadlockDetected, FeatureNotSupported) ||
		errors.As(err, &pg) && (pg.Code == QueryCanceled && strings.HasSuffix(pg.Message, "due to user request") ||
			pg.Message == "cannot execute a distributed query from a query on a shard")
}

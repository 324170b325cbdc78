package pglimit

import (
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
)

// On returns the limiter in a transaction or on a connection of the caller's. [InTx], [OnConn],
// [InSQLTx] and [OnSQLConn] make the session:
//
//	d, err := limiter.On(pglimit.InTx(tx)).Allow(ctx, key)
//
// In a transaction, a take is charged only if the transaction commits. The row stays locked until
// the transaction ends, so keep it short, and name keys in one order everywhere, with a Block each
// only once: two transactions that lock them in different orders deadlock.
//
// Requests of this limiter pass no stage and go out one by one: a decision that is rolled back must not be
// remembered, and nobody else's request belongs in the transaction. Durability is that of the
// transaction. Config.Timeout has no default here. If one is set and ends a call, the connection
// is closed, and with it the transaction. OnError is not called, because an error of Postgres, such
// as your lock_timeout's, may have aborted the transaction: in strategies.TokenBucket that of a
// request for one key does. A Reset leaves the denials that this process remembers, and its
// leases, as they are. Above READ COMMITTED the transaction does not see a refund, a reset or a block
// that others commit after its first statement: it may deny tokens that are there, and take from a key
// that is blocked.
//
// It works until the session ends or the Limiter is closed. If session is nil, every call returns
// an error.
func (l *Limiter) On(session Session) *Limiter {
	if isNil(session) {
		session = nil
	}
	in := &Limiter{
		session: session, strategy: l.strategy, config: l.config, limit: l.limit,
		timeout:  orDefault(l.config.Timeout, NoTimeout),
		failures: l.failures, waiting: l.waiting, queue: l.queue, counters: l.counters, observers: l.observers, parent: l, rules: l.rules,
		share: l.share, top: l.top, answers: l.answers,
		eachMemory: func(func(*denials.Memory)) {},
	}
	in.config.OnError = nil
	return in
}

// InTx returns a Session in a transaction of the caller's, for [Limiter.On]. If tx is nil, so is the
// Session.
func InTx(tx Tx) Session {
	if isNil(tx) {
		return nil
	}
	return postgres.InTx(tx)
}

// OnConn returns a Session on a connection of the caller's, inside a transaction or not, for
// [Limiter.On]. Nobody else may use the connection at the same time. For a *pgxpool.Conn, pass its
// Conn(). If conn is nil, so is the Session.
func OnConn(conn *pgx.Conn) Session {
	if conn == nil {
		return nil
	}
	return postgres.OnConn(conn)
}

// InSQLTx is [InTx] for a transaction of database/sql: a *sql.Tx, or a type that embeds one, such
// as sqlx.Tx. Of a bun.Tx, pass its Tx: its own methods read a query in another way. See [NewSQL]
// for the drivers.
//
// If the context or Config.Timeout ends a call, the transaction is lost, as with pgx.
func InSQLTx(tx SQLTx) Session {
	if isNil(tx) {
		return nil
	}
	return postgres.InSQLTx(tx)
}

// OnSQLConn is [OnConn] for a connection of database/sql that is in no transaction: database/sql
// cannot say whether it is. In a transaction, use [InSQLTx].
func OnSQLConn(conn *sql.Conn) Session {
	if conn == nil {
		return nil
	}
	return postgres.OnSQLConn(conn)
}

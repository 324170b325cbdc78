package pglimit

import (
	"database/sql"
	"errors"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// NewSQL is [New] on a *sql.DB, with the driver github.com/jackc/pgx/v5/stdlib or
// github.com/lib/pq. [Limiter.InSQLTx] and [Limiter.OnSQLConn] take in a transaction or on a
// connection of yours.
//
// sqlx, Bun, GORM, ent and sqlc keep a *sql.DB, or embed one: sqlx.DB itself, DB of a bun.DB, what
// DB() of a gorm.DB or of ent's driver returns.
//
// A decision is one round trip with pgx, and with lib/pq if its connection string says
// binary_parameters=yes; else lib/pq prepares each statement, which makes two, and cannot be used
// behind PgBouncer in transaction mode. ForUpdateNowait needs eight with either, because
// database/sql has no pipelines. In a transaction of yours, a savepoint costs all but TokenBucket two
// more. Over database/sql, signs of life for the [Breaker] come from
// connections of db: leave room for them in MaxOpenConns. lib/pq notices that an idle
// connection has broken only when a decision fails on it: after a restart of the server one
// fails, as unavailable, for each idle connection.
func NewSQL(db SQLDB, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(db) {
		return nil, errors.New("pglimit: NewSQL needs a database, such as a *sql.DB")
	}
	return newLimiter(db, rate.OnSQLDB(db), strategy, config)
}

// InSQLTx is [Limiter.InTx] in a transaction of database/sql: a *sql.Tx, or a type that embeds
// one, such as sqlx.Tx. Of a bun.Tx, pass its Tx: its own methods read a query in another way.
//
// If the context or Config.Timeout ends a call, the transaction is lost, as with pgx.
func (l *Limiter) InSQLTx(tx SQLTx) *Limiter {
	if isNil(tx) {
		return l.on(nil)
	}
	return l.on(rate.InSQLTx(tx))
}

// OnSQLConn is the limiter on a connection of the caller's that is in no transaction: see
// [Limiter.InTx]. In a transaction, use [Limiter.InSQLTx].
func (l *Limiter) OnSQLConn(conn *sql.Conn) *Limiter {
	if conn == nil {
		return l.on(nil)
	}
	return l.on(rate.OnSQLConn(conn))
}

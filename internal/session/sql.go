package session

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// SQLDB is a *sql.DB, or a type that embeds one.
type SQLDB interface {
	Conn(ctx context.Context) (*sql.Conn, error)
	PingContext(ctx context.Context) error
}

// SQLTx is a *sql.Tx, or a type that embeds one. Only the caller calls Commit and Rollback: they
// are listed here because they tell a transaction from a pool or a connection.
type SQLTx interface {
	sqlSender
	Commit() error
	Rollback() error
}

type sqlSender interface {
	ExecContext(ctx context.Context, sql string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, sql string, args ...any) (*sql.Rows, error)
}

// OnSQLDB is a session that sends each call on a free connection of db, through pgx's stdlib or
// github.com/lib/pq. database/sql has no pipelines: a Pipeline is one round trip per statement.
//
// A call is sent once. (By itself, database/sql repeats a statement after driver.ErrBadConn, which
// lib/pq also returns when a connection breaks before the answer: the take would be charged
// twice. A statement on a connection is not repeated.)
func OnSQLDB(db SQLDB) rate.Session { return sqlDBSession{db} }

// OnSQLConn is a session on the connection, which nobody else may use at the same time, and which
// is in no transaction: database/sql cannot say whether it is. In a transaction, use [InSQLTx].
func OnSQLConn(conn *sql.Conn) rate.Session { return &sqlSession{sender: conn} }

// InSQLTx is a session in the transaction: a take is charged only if the transaction commits.
func InSQLTx(tx SQLTx) rate.Session { return &sqlSession{sender: tx, begun: true} }

// sqlDBSession sends each call on a connection that it has to itself meanwhile.
type sqlDBSession struct{ db SQLDB }

func (sqlDBSession) Autocommits() bool { return true }

func (s sqlDBSession) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = s.OneConnection(ctx, func(conn rate.Session) error {
		rows, err = conn.Exec(ctx, sql, args...)
		return err
	})
	return rows, err
}

func (s sqlDBSession) Row(ctx context.Context, sql string, args []any, into ...any) error {
	return s.OneConnection(ctx, func(conn rate.Session) error { return conn.Row(ctx, sql, args, into...) })
}

func (s sqlDBSession) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	err = s.OneConnection(ctx, func(conn rate.Session) error {
		done, err = conn.Pipeline(ctx, statements...)
		return err
	})
	return done, err
}

func (s sqlDBSession) busyConns() int {
	if db, ok := s.db.(interface{ Stats() sql.DBStats }); ok {
		if stats := db.Stats(); stats.InUse >= stats.MaxOpenConnections {
			return stats.MaxOpenConnections // zero: as many as are asked for
		}
	}
	return 0
}

func (s sqlDBSession) OneConnection(ctx context.Context, f func(rate.Session) error) error {
	var conn *sql.Conn
	_, err := within(ctx, func() (err error) {
		if conn, err = s.free(ctx); err == nil && ctx.Err() != nil { // perhaps nobody waits for it
			err = errors.Join(ctx.Err(), conn.Close())
		}
		return err
	})
	if err != nil {
		return sqlErr(ctx, err)
	}
	on := &sqlSession{sender: conn}
	defer func() {
		if !on.begun && !on.stuck {
			_ = conn.Close()
			return
		}
		// Not to be used again. This waits for a statement that is still under way.
		go func() { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }()
	}()
	return f(on)
}

// maxBroken is how many times in a row a caller asks for a connection and gets broken ones.
const maxBroken = 100

// free is a connection that nobody uses. Callers who leave during a statement break theirs, and
// database/sql gives up after three of those, although another one would do: nothing was sent yet.
func (s sqlDBSession) free(ctx context.Context) (conn *sql.Conn, err error) {
	for range maxBroken {
		if conn, err = s.db.Conn(ctx); !errors.Is(err, driver.ErrBadConn) || ctx.Err() != nil {
			break
		}
	}
	return conn, err
}

// Ping asks for a sign of life. database/sql asks on a new connection once two idle ones have
// turned out to be broken.
func (s sqlDBSession) Ping(ctx context.Context) error {
	_, err := within(ctx, func() error { return s.db.PingContext(ctx) })
	return sqlErr(ctx, err)
}

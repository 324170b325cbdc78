package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

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
func OnSQLDB(db *sql.DB) rate.Session { return &pooled{connections: sqlPool{db}} }

// OnSQLConn is a session on the connection, which nobody else may use at the same time, and which
// is in no transaction: database/sql cannot say whether it is. In a transaction, use [InSQLTx].
func OnSQLConn(conn *sql.Conn) rate.Session { return &sqlSession{sender: conn} }

// InSQLTx is a session in the transaction: a take is charged only if the transaction commits.
func InSQLTx(tx SQLTx) rate.Session { return &sqlSession{sender: tx, begun: true} }

// Raw calls f with the driver's connection, of one of the connections of OnSQLDB.
func Raw(on rate.Session, f func(driver any) error) error {
	return on.(*sqlSession).sender.(*sql.Conn).Raw(f) //nolint:forcetypeassert // see use
}

type sqlPool struct{ db *sql.DB }

func (p sqlPool) use(ctx context.Context, f func(rate.Session) error) error {
	var conn *sql.Conn
	_, err := within(ctx, func() (err error) {
		if conn, err = p.free(ctx); err == nil && ctx.Err() != nil { // perhaps nobody waits for it
			err = errors.Join(ctx.Err(), conn.Close())
		}
		return err
	})
	if err != nil {
		return Err(ctx, err)
	}
	on := &sqlSession{sender: conn}
	err = f(on)
	err = blame(ctx, err, IsBroken(err), on.succeeded, sqlAddressOf(conn))
	if useless := errors.As(err, new(*connError)); !on.begun && !on.stuck && !useless {
		_ = conn.Close()
		return err
	}
	// This waits for a statement that is still under way.
	go discard(conn)
	return err
}

// sqlAddressOf the server, if the driver says it.
func sqlAddressOf(conn *sql.Conn) func() string {
	return func() string {
		if under := pgxOf(conn); under != nil {
			return addressOf(under)()
		}
		return "of the *sql.DB"
	}
}

// pgxOf is pgx's connection below; nil, if the driver is another one.
func pgxOf(conn *sql.Conn) (under *pgx.Conn) {
	_ = conn.Raw(func(driver any) error {
		if pgxDriver, is := driver.(interface{ Conn() *pgx.Conn }); is {
			under = pgxDriver.Conn()
		}
		return nil
	})
	return under
}

// discard a connection: it is not to be used again.
func discard(conn *sql.Conn) { _ = conn.Raw(func(any) error { return driver.ErrBadConn }) }

// IsBroken says that the connection cannot be used any more.
func IsBroken(err error) bool {
	var network net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &network) || pgconn.SafeToRetry(err)
}

// forget what is idle. What is in use is discarded when it fails.
func (p sqlPool) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, soon) // others may take what was idle
	defer cancel()
	for range p.db.Stats().Idle {
		conn, err := p.db.Conn(ctx)
		if err != nil {
			return
		}
		discard(conn)
	}
}

func (p sqlPool) open() int { return p.db.Stats().Idle }

func (p sqlPool) busy() int {
	if stats := p.db.Stats(); stats.InUse >= stats.MaxOpenConnections {
		return stats.MaxOpenConnections // zero: as many as are asked for
	}
	return 0
}

// maxBroken is how many times in a row a caller asks for a connection and gets broken ones.
const maxBroken = 100

// free is a connection that nobody uses. Callers who leave during a statement break theirs, and
// database/sql gives up after three of those, although another one would do: nothing was sent yet.
func (p sqlPool) free(ctx context.Context) (conn *sql.Conn, err error) {
	for range maxBroken {
		if conn, err = p.db.Conn(ctx); !errors.Is(err, driver.ErrBadConn) || ctx.Err() != nil {
			break
		}
	}
	return conn, err
}

// sign asks on a connection of the pool: there is no other.
func (p sqlPool) sign(ctx context.Context) (err error) {
	for range 2 { // a connection that is stale, and one that is not
		err = p.use(ctx, func(on rate.Session) error {
			var why string
			if err := on.Row(ctx, canWrite, nil, &why); err != nil {
				return err
			}
			return cannotWrite(sqlAddressOf(on.(*sqlSession).sender.(*sql.Conn)), why) //nolint:forcetypeassert // see use
		})
		if !errors.As(err, new(*connError)) || ctx.Err() != nil {
			break
		}
		p.forget(ctx)
	}
	return err
}

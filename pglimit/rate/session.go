package rate

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Session is where a strategy sends its statements: a pool ([OnPool]), a connection
// ([OnConn]) or a transaction of the caller's ([InTx]), or the same of database/sql ([OnSQLDB],
// [OnSQLConn], [InSQLTx]).
type Session interface {
	// Autocommits says whether the next statement is a transaction of its own. If not, it
	// joins the caller's transaction, which only the caller configures and ends.
	Autocommits() bool

	// Exec sends a statement and returns how many rows it changed.
	Exec(ctx context.Context, sql string, args ...any) (rows int64, err error)

	// Row sends a statement and scans the first row that it returns. If it returns no row,
	// the error is pgx.ErrNoRows.
	Row(ctx context.Context, sql string, args []any, into ...any) error

	// Pipeline sends several statements in one round trip (over database/sql, one for each),
	// and returns how many succeeded. The first error ends it. If the session autocommits, they
	// are one transaction.
	Pipeline(ctx context.Context, statements ...Statement) (done int, err error)

	// OneConnection calls f with a session of one connection, on which statements can begin
	// and end a transaction: statements of their own, which start with begin or start
	// transaction, commit, end or rollback. f must not keep the session.
	OneConnection(ctx context.Context, f func(Session) error) error
}

// Statement of a [Session.Pipeline].
type Statement struct {
	SQL  string
	Args []any
	Into []any // scanned from the first row; unchanged if there is no row. nil: rows are ignored
}

// Pool is a *pgxpool.Pool, or a type that embeds one.
type Pool interface {
	pgxSender
	AcquireFunc(ctx context.Context, f func(*pgxpool.Conn) error) error
}

// Tx is a pgx.Tx, or a type that embeds one. Only the caller calls Commit and Rollback: they
// are listed here because they tell a transaction from a pool or a connection.
type Tx interface {
	pgxSender
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

type pgxSender interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// OnPool is a session that sends each call on a free connection of the pool.
func OnPool(pool Pool) Session { return poolSession{pgxSession{pool}, pool} }

// OnConn is a session on the connection, which nobody else may use at the same time. Each call
// looks up whether it is in a transaction. For a *pgxpool.Conn, pass its Conn().
func OnConn(conn *pgx.Conn) Session { return connSession{pgxSession{conn}, conn} }

// InTx is a session in the transaction: a take is charged only if the transaction commits.
func InTx(tx Tx) Session { return txSession{pgxSession{tx}} }

type pgxSession struct{ pgxSender }

func (s pgxSession) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	if !isASCII(args) {
		err = s.checked(ctx, func(db pgxSender) error {
			tag, err := db.Exec(ctx, sql, args...)
			rows = tag.RowsAffected()
			return err
		})
		return rows, err
	}
	tag, err := s.pgxSender.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (s pgxSession) Row(ctx context.Context, sql string, args []any, into ...any) error {
	if !isASCII(args) {
		return s.checked(ctx, func(db pgxSender) error { return db.QueryRow(ctx, sql, args...).Scan(into...) })
	}
	return s.QueryRow(ctx, sql, args...).Scan(into...)
}

func (s pgxSession) Pipeline(ctx context.Context, statements ...Statement) (done int, err error) {
	for _, statement := range statements {
		if !isASCII(statement.Args) {
			err = s.checked(ctx, func(db pgxSender) error {
				done, err = pipeline(ctx, db, statements)
				return err
			})
			return done, err
		}
	}
	return pipeline(ctx, s.pgxSender, statements)
}

func pipeline(ctx context.Context, db pgxSender, statements []Statement) (done int, err error) {
	var batch pgx.Batch
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
	}
	results := db.SendBatch(ctx, &batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for _, statement := range statements {
		if statement.Into == nil {
			_, err = results.Exec()
		} else if err = results.QueryRow().Scan(statement.Into...); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		if err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

type poolSession struct {
	pgxSession
	pool Pool
}

func (poolSession) Autocommits() bool { return true }

func (s poolSession) OneConnection(ctx context.Context, f func(Session) error) error {
	return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return f(OnConn(conn.Conn())) })
}

// BusyConns is how many connections the pool of the session may have, if all of them are in use.
// Else, and if it is no pool, it is zero.
func BusyConns(session Session) int {
	if s, ok := session.(interface{ busyConns() int }); ok {
		return s.busyConns()
	}
	return 0
}

func (s poolSession) busyConns() int {
	if pool, ok := s.pool.(interface{ Stat() *pgxpool.Stat }); ok {
		if stat := pool.Stat(); stat.AcquiredConns() >= stat.MaxConns() {
			return int(stat.MaxConns())
		}
	}
	return 0
}

type connSession struct {
	pgxSession
	conn *pgx.Conn
}

const idle = 'I' // of PgConn.TxStatus: in no transaction

func (s connSession) Autocommits() bool { return s.conn.PgConn().TxStatus() == idle }

func (s connSession) OneConnection(_ context.Context, f func(Session) error) error { return f(s) }

type txSession struct{ pgxSession }

func (txSession) Autocommits() bool { return false }

func (s txSession) OneConnection(_ context.Context, f func(Session) error) error { return f(s) }

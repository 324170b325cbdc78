package rate

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Session is what a strategy speaks to: a pool ([OnPool]), a connection ([OnConn]) or a
// transaction of the caller's ([InTx]).
type Session interface {
	// Autocommits says whether what is sent next is a transaction of its own. If not, it
	// joins one of the caller's, whose settings and end are the caller's.
	Autocommits() bool

	// Exec sends a statement and returns how many rows it changed.
	Exec(ctx context.Context, sql string, args ...any) (rows int64, err error)

	// Row sends a statement and scans the first row that it returns. If there is none, the
	// error is pgx.ErrNoRows.
	Row(ctx context.Context, sql string, args []any, into ...any) error

	// Pipeline sends several statements in one round trip, and returns how many were done.
	// The first error ends it. Where the session autocommits they are one transaction.
	Pipeline(ctx context.Context, statements ...Statement) (done int, err error)

	// OneConnection calls f with a session of one connection, on which a transaction can be
	// begun and ended by statements. f does not keep it.
	OneConnection(ctx context.Context, f func(Session) error) error
}

// Statement of a [Session.Pipeline].
type Statement struct {
	SQL  string
	Args []any
	Into []any // scanned from the first row; left as it is if there is none. nil: rows are ignored
}

// Pool is what a *pgxpool.Pool can do, and whatever has one embedded.
type Pool interface {
	pgxSender
	AcquireFunc(ctx context.Context, f func(*pgxpool.Conn) error) error
}

// Tx is what a pgx.Tx can do, and whatever has one embedded. Commit and Rollback are the
// caller's: they are here because only a transaction has them.
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

// OnPool is a session on whatever connection of the pool is free.
func OnPool(pool Pool) Session { return poolSession{pgxSession{pool}, pool} }

// OnConn is a session on the connection, which must not be used by others meanwhile. Whether
// it is in a transaction is looked up at each call; of a *pgxpool.Conn pass its Conn().
func OnConn(conn *pgx.Conn) Session { return connSession{pgxSession{conn}, conn} }

// InTx is a session in the transaction: what is taken is charged if that commits.
func InTx(tx Tx) Session { return txSession{pgxSession{tx}} }

type pgxSession struct{ pgxSender }

func (s pgxSession) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := s.pgxSender.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (s pgxSession) Row(ctx context.Context, sql string, args []any, into ...any) error {
	return s.QueryRow(ctx, sql, args...).Scan(into...)
}

func (s pgxSession) Pipeline(ctx context.Context, statements ...Statement) (done int, err error) {
	var batch pgx.Batch
	for _, statement := range statements {
		batch.Queue(statement.SQL, statement.Args...)
	}
	results := s.SendBatch(ctx, &batch)
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

package session

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

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

// OnConn is a session on the connection, which nobody else may use at the same time. Each call
// looks up whether it is in a transaction. For a *pgxpool.Conn, pass its Conn().
func OnConn(conn *pgx.Conn) rate.Session { return connSession{pgxSession{conn}, conn} }

// InTx is a session in the transaction: a take is charged only if the transaction commits.
func InTx(tx Tx) rate.Session { return txSession{pgxSession{tx}} }

type pgxSession struct{ pgxSender }

func (s pgxSession) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	if !isASCII(args) {
		err = s.checked(func(db pgxSender) error {
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
		return s.checked(func(db pgxSender) error { return db.QueryRow(ctx, sql, args...).Scan(into...) })
	}
	return s.QueryRow(ctx, sql, args...).Scan(into...)
}

func (s pgxSession) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	for _, statement := range statements {
		if !isASCII(statement.Args) {
			err = s.checked(func(db pgxSender) error {
				done, err = pipeline(ctx, db, statements)
				return err
			})
			return done, err
		}
	}
	return pipeline(ctx, s.pgxSender, statements)
}

func pipeline(ctx context.Context, db pgxSender, statements []rate.Statement) (done int, err error) {
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

type connSession struct {
	pgxSession
	conn *pgx.Conn
}

const idle = 'I' // of PgConn.TxStatus: in no transaction

func (s connSession) Autocommits() bool { return s.conn.PgConn().TxStatus() == idle }

func (s connSession) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(s) }

type txSession struct{ pgxSession }

func (txSession) Autocommits() bool { return false }

func (s txSession) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(s) }

package postgres

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
func OnConn(conn *pgx.Conn) rate.Session { return &pgxSession{pgxSender: conn, conn: conn} }

// InTx is a session in the transaction: a take is charged only if the transaction commits.
func InTx(tx Tx) rate.Session { return &pgxSession{pgxSender: tx} }

// pgxSession is a session on one connection, or in a transaction.
type pgxSession struct {
	pgxSender
	conn      *pgx.Conn // nil: in a transaction
	succeeded bool      // a statement on the connection has
}

const idle = 'I' // of PgConn.TxStatus: in no transaction

func (s *pgxSession) Autocommits() bool {
	return s.conn != nil && s.conn.PgConn().TxStatus() == idle
}

func (s *pgxSession) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(s) }

func (s *pgxSession) note(err error) error {
	if s.conn != nil && err == nil {
		s.succeeded = true
	}
	return err
}

func (s *pgxSession) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	if err := s.check(args); err != nil {
		return 0, err
	}
	tag, err := s.pgxSender.Exec(ctx, sql, args...)
	return tag.RowsAffected(), s.note(err)
}

func (s *pgxSession) Row(ctx context.Context, sql string, args []any, into ...any) error {
	if err := s.check(args); err != nil {
		return err
	}
	return s.note(s.QueryRow(ctx, sql, args...).Scan(into...))
}

func (s *pgxSession) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	var batch pgx.Batch
	for _, statement := range statements {
		if err := s.check(statement.Args); err != nil {
			return 0, err
		}
		batch.Queue(statement.SQL, statement.Args...)
	}
	results := s.SendBatch(ctx, &batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
		_ = s.note(err)
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

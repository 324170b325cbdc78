package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// sqlSession is a session on one connection, or in a transaction.
type sqlSession struct {
	sender sqlSender
	begun  bool // a transaction has been begun, by a statement or by the caller
	stuck  bool // the driver has not returned, although the context had ended

	succeeded bool // a statement has

	readsUTF8 bool // known, see check
}

func (s *sqlSession) Autocommits() bool { return !s.begun }

func (s *sqlSession) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(s) }

func (s *sqlSession) Exec(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	if err := s.check(ctx, args); err != nil {
		return 0, err
	}
	args, err = sqlArgs(args)
	if err != nil {
		return 0, err
	}
	var result sql.Result
	if err := s.send(ctx, func() (err error) {
		result, err = s.sender.ExecContext(ctx, statement, args...)
		return err
	}); err != nil {
		return 0, err
	}
	s.note(statement)
	return result.RowsAffected()
}

func (s *sqlSession) Row(ctx context.Context, query string, args []any, into ...any) error {
	if err := s.check(ctx, args); err != nil {
		return err
	}
	args, err := sqlArgs(args)
	if err != nil {
		return err
	}
	found, targets := sqlTargets(into) // not into: the driver may still write after ctx has ended
	if err := s.send(ctx, func() error { return s.row(ctx, query, args, targets) }); err != nil {
		return err
	}
	for i := range into {
		if into[i] != nil {
			reflect.ValueOf(into[i]).Elem().Set(reflect.ValueOf(found[i]).Elem())
		}
	}
	return nil
}

func (s *sqlSession) row(ctx context.Context, query string, args, into []any) error {
	rows, err := s.sender.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has told it
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	// In pgx's words, by which a strategy knows the row of somebody else's statement.
	if columns, err := rows.Columns(); err == nil && len(columns) != len(into) {
		return fmt.Errorf("number of field descriptions must equal number of destinations, got %d and %d", len(columns), len(into))
	}
	if err := rows.Scan(into...); err != nil {
		return err
	}
	for rows.Next() {
		// To the end: there comes the error of a commit.
	}
	return rows.Err()
}

// Pipeline sends the statements one after another.
func (s *sqlSession) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	if len(statements) < 2 || s.begun || begins(statements[0].SQL) {
		return s.inTurn(ctx, statements)
	}
	if _, err := s.Exec(ctx, "begin"); err != nil {
		return 0, err
	}
	if done, err = s.inTurn(ctx, statements); err == nil {
		_, err = s.Exec(ctx, "commit")
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = s.Exec(undo, "rollback") // else the connection is lost, and the transaction with it
	}
	return done, err
}

func (s *sqlSession) inTurn(ctx context.Context, statements []rate.Statement) (done int, err error) {
	for _, statement := range statements {
		if statement.Into == nil {
			_, err = s.Exec(ctx, statement.SQL, statement.Args...)
		} else if err = s.Row(ctx, statement.SQL, statement.Args, statement.Into...); errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		if err != nil {
			return done, err
		}
		done++
	}
	return done, nil
}

var errStuck = errors.New("pglimit: the driver has not returned from the statement before")

// send a statement, unless the context has ended: lib/pq might let it pass, and would close the
// connection.
func (s *sqlSession) send(ctx context.Context, statement func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.stuck {
		return errStuck
	}
	ended, err := within(ctx, statement)
	s.stuck, s.succeeded = s.stuck || !ended, s.succeeded || err == nil
	return Err(ctx, err)
}

// note whether a statement that succeeded has begun or ended a transaction.
func (s *sqlSession) note(statement string) {
	switch {
	case begins(statement):
		s.begun = true
	case hasWords(statement, "rollback to"):
	case hasWords(statement, "commit"), hasWords(statement, "rollback"), hasWords(statement, "end"):
		s.begun = false
	}
}

func begins(statement string) bool {
	return hasWords(statement, "begin") || hasWords(statement, "start transaction")
}

func hasWords(statement, words string) bool {
	return len(statement) >= len(words) && strings.EqualFold(statement[:len(words)], words)
}

// grace is how long a driver has, after the context has ended, to cancel a statement and say how
// it went.
const grace = 100 * time.Millisecond

// within calls f, and waits for it until the grace after ctx has ended. Then ended is false: f goes
// on, and what it writes must not be read. lib/pq needs this: once a server is silent, it waits
// for as long as the network lets it.
func within(ctx context.Context, f func() error) (ended bool, err error) {
	if ctx.Done() == nil {
		return true, f()
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return true, err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case err := <-done:
		return true, err
	case <-late.C:
		return false, ctx.Err()
	}
}

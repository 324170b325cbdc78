package rate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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
func OnSQLDB(db SQLDB) Session { return sqlDBSession{db} }

// OnSQLConn is a session on the connection, which nobody else may use at the same time, and which
// is in no transaction: database/sql cannot say whether it is. In a transaction, use [InSQLTx].
func OnSQLConn(conn *sql.Conn) Session { return &sqlSession{sender: conn} }

// InSQLTx is a session in the transaction: a take is charged only if the transaction commits.
func InSQLTx(tx SQLTx) Session { return &sqlSession{sender: tx, begun: true} }

// sqlDBSession sends each call on a connection that it has to itself meanwhile.
type sqlDBSession struct{ db SQLDB }

func (sqlDBSession) Autocommits() bool { return true }

func (s sqlDBSession) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = s.OneConnection(ctx, func(conn Session) error {
		rows, err = conn.Exec(ctx, sql, args...)
		return err
	})
	return rows, err
}

func (s sqlDBSession) Row(ctx context.Context, sql string, args []any, into ...any) error {
	return s.OneConnection(ctx, func(conn Session) error { return conn.Row(ctx, sql, args, into...) })
}

func (s sqlDBSession) Pipeline(ctx context.Context, statements ...Statement) (done int, err error) {
	err = s.OneConnection(ctx, func(conn Session) error {
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

func (s sqlDBSession) OneConnection(ctx context.Context, f func(Session) error) error {
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

// sqlSession is a session on one connection, or in a transaction.
type sqlSession struct {
	sender sqlSender
	begun  bool // a transaction has been begun, by a statement or by the caller
	stuck  bool // the driver has not returned, although the context had ended

	readsUTF8 bool // known, see check
}

func (s *sqlSession) Autocommits() bool { return !s.begun }

func (s *sqlSession) OneConnection(_ context.Context, f func(Session) error) error { return f(s) }

func (s *sqlSession) Exec(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	if err := s.check(ctx, args); err != nil {
		return 0, err
	}
	args = sqlArgs(args)
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
	args = sqlArgs(args)
	found := make([]any, len(into)) // of its own: the driver may still write after ctx has ended
	for i := range into {
		found[i] = sqlTarget(into[i])
	}
	if err := s.send(ctx, func() error { return s.row(ctx, query, args, found) }); err != nil {
		return err
	}
	for i := range into {
		if into[i] != nil {
			to := reflect.ValueOf(into[i]).Elem()
			to.Set(reflect.ValueOf(found[i]).Elem().Convert(to.Type()))
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
func (s *sqlSession) Pipeline(ctx context.Context, statements ...Statement) (done int, err error) {
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

func (s *sqlSession) inTurn(ctx context.Context, statements []Statement) (done int, err error) {
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
	s.stuck = s.stuck || !ended
	return sqlErr(ctx, err)
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

package migrations

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// transaction makes the open transaction of a connection look like a database to goose. It is the only
// connection, closing it does nothing, and the transactions begun on it are savepoints.
type transaction struct{ sender }

// sender is the part of a driver's connection that goose uses. pgx's has it, and lib/pq's.
type sender interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

var (
	_ driver.Connector   = transaction{}
	_ driver.ConnBeginTx = transaction{}
)

func newTransaction(conn rate.Session) (t transaction, err error) {
	err = postgres.Raw(conn, func(driver any) error {
		var is bool
		if t.sender, is = driver.(sender); !is {
			return fmt.Errorf("the driver of a %T cannot migrate: this needs ExecContext and QueryContext, as github.com/jackc/pgx/v5/stdlib has them", driver)
		}
		return nil
	})
	return t, err
}

func (t transaction) Connect(context.Context) (driver.Conn, error) { return t, nil }
func (t transaction) Driver() driver.Driver                        { return nil }
func (t transaction) Close() error                                 { return nil }

// BeginTx ignores the options: a savepoint has none.
func (t transaction) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	s := savepoint{ctx, t}
	return s, s.exec("savepoint migration")
}

type savepoint struct {
	ctx context.Context // of BeginTx: database/sql passes none to Commit and Rollback
	in  transaction
}

func (s savepoint) exec(statement string) error {
	_, err := s.in.ExecContext(s.ctx, statement, nil)
	return err
}

func (s savepoint) Commit() error { return s.exec("release savepoint migration") }

func (s savepoint) Rollback() error {
	return errors.Join(s.exec("rollback to savepoint migration"), s.Commit())
}

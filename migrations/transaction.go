package migrations

import (
	"context"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// transaction makes an open transaction look like a database to goose. It is the only
// connection, closing it does nothing, and the transactions begun on it are savepoints.
// All other methods are those of pgx's own driver.
type transaction struct {
	*stdlib.Conn
	tx pgx.Tx
}

var (
	_ driver.Connector       = (*transaction)(nil)
	_ driver.ConnBeginTx     = (*transaction)(nil)
	_ driver.SessionResetter = (*transaction)(nil)
)

func (t *transaction) Connect(context.Context) (driver.Conn, error) { return t, nil }
func (t *transaction) Driver() driver.Driver                        { return stdlib.GetDefaultDriver() }
func (t *transaction) Close() error                                 { return nil }

// ResetSession in pgx's driver refuses a connection that is in a transaction.
func (t *transaction) ResetSession(context.Context) error { return nil }

func (t *transaction) Begin() (driver.Tx, error) {
	return t.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx ignores the options: a savepoint has none.
func (t *transaction) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	tx, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return savepoint{ctx, tx}, nil
}

type savepoint struct {
	ctx context.Context // of BeginTx: database/sql passes none to Commit and Rollback
	tx  pgx.Tx
}

func (s savepoint) Commit() error   { return s.tx.Commit(s.ctx) }
func (s savepoint) Rollback() error { return s.tx.Rollback(s.ctx) }

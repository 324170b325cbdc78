// Package queries has the shape of what sqlc generates for database/sql from
//
//	-- name: AddOrder :exec
//	insert into orders (customer) values ($1);
package queries

import (
	"context"
	"database/sql"
)

// DBTX is a *sql.DB or a *sql.Tx.
type DBTX interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	PrepareContext(context.Context, string) (*sql.Stmt, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// New returns the queries on db.
func New(db DBTX) *Queries { return &Queries{db: db} }

// Queries of the application.
type Queries struct{ db DBTX }

// WithTx returns the queries in tx.
func (q *Queries) WithTx(tx *sql.Tx) *Queries { return &Queries{db: tx} }

const addOrder = `-- name: AddOrder :exec
insert into orders (customer) values ($1)
`

// AddOrder adds an order of the customer.
func (q *Queries) AddOrder(ctx context.Context, customer string) error {
	_, err := q.db.ExecContext(ctx, addOrder, customer)
	return err
}

package pglimit

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn and pgx.Tx have in common.
//
// Given a pgx.Tx, a take joins the caller's transaction: it is charged if the
// transaction commits and given back if it is rolled back. The row stays locked
// until then, so keep such transactions short.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// Strategy decides in Postgres. The package strategies has four; strategytest, a
// conformance suite that any other can be held against.
//
// A Strategy has no state of its own and is safe for concurrent use.
type Strategy interface {
	// Name in lower case with underscores, as in ByName and on the command line.
	Name() string

	// Check says whether the strategy can keep the limit, which is valid: nil, or
	// a *LimitError.
	Check(limit Limit) error

	// Take decides the requests and answers in their order. Only Postgres's clock
	// counts. Requests for different buckets may come in any order and do not
	// deadlock with other calls; requests for the same bucket are decided in the
	// order given. The call is one transaction: an error means that nothing
	// was taken, or, if it came from the connection, that nobody knows.
	Take(ctx context.Context, db DB, requests []Request) ([]Decision, error)

	// Reset fills the bucket. Resetting one that is full does nothing.
	Reset(ctx context.Context, db DB, limiter, key string) error

	// Sweep removes rows of buckets that have been full for a minute, so that no
	// future decision changes (unless the database's clock steps back by more than
	// that). It looks at about limit rows, in one short transaction, never waits
	// for a locked row, and says where to go on.
	Sweep(ctx context.Context, db DB, from Cursor, limit int) (Swept, error)
}

// Cursor is a place in a walk over a strategy's table. Only [Strategy.Sweep]
// knows what it means; 0 is the beginning.
type Cursor int64

// Swept is what one [Strategy.Sweep] did.
type Swept struct {
	Removed int64
	Next    Cursor // where to go on
	Done    bool   // there is nothing behind Next
}

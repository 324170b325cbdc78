package strategies

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// block is a transaction on one connection that is opened and ended by
// statements, so that they can travel with others in one round trip; inside a
// transaction of the caller's it is a savepoint.
type block struct {
	conn             pglimit.DB
	open, keep, undo string
	release          func()
}

// newBlock finds the connection. Nothing is sent yet. Release must be called.
func newBlock(ctx context.Context, db pglimit.DB) (*block, error) {
	switch db := db.(type) {
	case *pgxpool.Pool:
		conn, err := db.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		return transaction(conn.Conn(), conn.Release), nil
	case *pgxpool.Conn:
		if autocommits(db) {
			return transaction(db.Conn(), func() {}), nil
		}
	case *pgx.Conn:
		if autocommits(db) {
			return transaction(db, func() {}), nil
		}
	case pgx.Tx:
	default: // somebody's own DB, of which nothing is known but its methods
		tx, err := db.Begin(ctx)
		if err != nil {
			return nil, err
		}
		b := savepoint(tx)
		b.release = func() { _ = tx.Commit(context.WithoutCancel(ctx)) }
		return b, nil
	}
	return savepoint(db), nil
}

func transaction(conn *pgx.Conn, release func()) *block {
	return &block{conn, "begin isolation level read committed", "commit", "rollback", release}
}

func savepoint(db pglimit.DB) *block {
	return &block{db, "savepoint pglimit", "release savepoint pglimit", "rollback to savepoint pglimit; release savepoint pglimit", func() {}}
}

// abandon undoes the block after an error, also when the caller's context has
// ended. Where even that fails the connection is lost, and the block with it.
func (b *block) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = b.conn.Exec(ctx, b.undo)
}

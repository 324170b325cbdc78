package strategies

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// block is a transaction on one connection that is opened and ended by
// statements, so that they can travel with others in one round trip; inside a
// transaction of the caller's it is a savepoint.
type block struct {
	conn             rate.Session
	open, keep, undo string
	opened           bool
}

// blockOn is what the state of the connection calls for. Nothing is sent yet.
func blockOn(conn rate.Session) *block {
	if conn.Autocommits() {
		return &block{conn: conn, open: "begin isolation level read committed", keep: "commit", undo: "rollback"}
	}
	return &block{conn: conn, open: "savepoint pglimit", keep: "release savepoint pglimit", undo: "rollback to savepoint pglimit; release savepoint pglimit"}
}

// abandon undoes the block after an error, also when the caller's context has
// ended. Where even that fails the connection is lost, and the block with it. One
// that was not opened must not be undone: a savepoint that is not there is an error,
// which would spoil the caller's transaction.
func (b *block) abandon(ctx context.Context) {
	if !b.opened {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = b.conn.Exec(ctx, b.undo)
}

// send sends one statement of the block's own.
func (b *block) send(ctx context.Context, statement string) error {
	_, err := b.conn.Exec(ctx, statement)
	return err
}

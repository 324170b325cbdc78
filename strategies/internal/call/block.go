package call

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Block is a transaction on one connection that is opened and ended by
// statements, so that they can travel with others in one round trip; inside a
// transaction of the caller's it is a savepoint.
type Block struct {
	Conn             rate.Session
	Open, Keep, Undo string
	Opened           bool
}

// BlockOn is what the state of the connection calls for. Nothing is sent yet.
func BlockOn(conn rate.Session) *Block {
	if conn.Autocommits() {
		return &Block{Conn: conn, Open: "begin isolation level read committed", Keep: "commit", Undo: "rollback"}
	}
	return &Block{Conn: conn, Open: "savepoint pglimit", Keep: "release savepoint pglimit", Undo: "rollback to savepoint pglimit; release savepoint pglimit"}
}

// Abandon undoes the block after an error, also when the caller's context has
// ended. Where even that fails the connection is lost, and the block with it. One
// that was not opened must not be undone: a savepoint that is not there is an error,
// which would spoil the caller's transaction.
func (b *Block) Abandon(ctx context.Context) {
	if !b.Opened {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = b.Conn.Exec(ctx, b.Undo)
}

// Send sends one statement of the block's own.
func (b *Block) Send(ctx context.Context, statement string) error {
	_, err := b.Conn.Exec(ctx, statement)
	return err
}

package call

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Block is a transaction on one connection, or a savepoint inside the caller's
// transaction. Plain statements open and end it, so that they can share a round trip with
// other statements.
type Block struct {
	Conn             rate.Session
	Open, Keep, Undo string
	Opened           bool
}

// BlockOn returns a block for the state that the connection is in. It sends nothing yet.
func BlockOn(conn rate.Session) *Block {
	if conn.Autocommits() {
		return &Block{Conn: conn, Open: "begin isolation level read committed", Keep: "commit", Undo: "rollback"}
	}
	return &Block{Conn: conn, Open: "savepoint pglimit", Keep: "release savepoint pglimit", Undo: "rollback to savepoint pglimit; release savepoint pglimit"}
}

// Abandon undoes the block after an error, even if the caller's context has ended. If the
// undoing fails, the connection is lost, and the block with it. A block that was not opened is
// not undone: to roll back to a missing savepoint is an error that would abort the caller's
// transaction.
func (b *Block) Abandon(ctx context.Context) {
	if !b.Opened {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = b.Conn.Exec(ctx, b.Undo)
}

// Send sends one statement that opens or ends the block.
func (b *Block) Send(ctx context.Context, statement string) error {
	_, err := b.Conn.Exec(ctx, statement)
	return err
}

package rate

import "context"

// Session is where a strategy sends its statements: a pool, or a connection or a transaction of
// the caller's, of pgx or of database/sql. pglimit.InTx and its like make one.
type Session interface {
	// Autocommits says whether the next statement is a transaction of its own. If not, it
	// joins the caller's transaction, which only the caller configures and ends.
	Autocommits() bool

	// Exec sends a statement and returns how many rows it changed.
	Exec(ctx context.Context, sql string, args ...any) (rows int64, err error)

	// Row sends a statement and scans the first row that it returns. If it returns no row,
	// the error is pgx.ErrNoRows.
	Row(ctx context.Context, sql string, args []any, into ...any) error

	// Pipeline sends several statements in one round trip (over database/sql, one for each),
	// and returns how many succeeded. The first error ends it. If the session autocommits, they
	// are one transaction.
	Pipeline(ctx context.Context, statements ...Statement) (done int, err error)

	// OneConnection calls f with a session of one connection, on which statements can begin
	// and end a transaction: statements of their own, which start with begin or start
	// transaction, commit, end or rollback. f must not keep the session. A pool calls f again, on another
	// connection, if the one before was to blame (it was ended, or cannot write) and changed nothing.
	OneConnection(ctx context.Context, f func(Session) error) error
}

// Statement of a [Session.Pipeline].
type Statement struct {
	SQL  string
	Args []any
	Into []any // scanned from the first row; unchanged if there is no row. nil: rows are ignored
}

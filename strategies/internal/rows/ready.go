package rows

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/call"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

//go:embed sql/ready.sql
var readyFile string

var ready = call.Statement(readyFile, "")

// Ready says what keeps the session from granting tokens of these tables, and writes nothing to find out.
func Ready(ctx context.Context, session rate.Session, tables ...Table) error {
	names := make([]string, len(tables))
	for i := range tables {
		names[i] = tables[i].name
	}
	err := call.Again(ctx, session, 5, func() error {
		// On a connection of a pool: a fresh one takes its place if that is to blame.
		return session.OneConnection(ctx, func(conn rate.Session) error {
			var readOnly, hidden bool
			var lacks string
			err := conn.Row(ctx, ready, []any{names}, &readOnly, &lacks, &hidden)
			switch {
			case err != nil:
				return err
			case readOnly:
				return &pgconn.PgError{Severity: "ERROR", Code: call.ReadOnlyTransaction, Message: "transaction_read_only is on"}
			case lacks != "":
				return fmt.Errorf("%w: %s", rate.ErrPermission, lacks)
			case hidden:
				return call.ErrHidden
			}
			return nil
		})
	})
	return call.Explain(err)
}

package rows

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var ready = postgres.StatementOf(files, "ready.sql", "") + ",\n" + postgres.Statement(postgres.Differs, "")

// Ready says what keeps the session from granting tokens of these tables, and writes nothing to find out.
func Ready(ctx context.Context, session rate.Session, tables ...*Table) error {
	names := make([]string, len(tables))
	args := postgres.DiffersArgs(true, false)
	for i := range tables {
		names[i] = tables[i].Name
	}
	err := postgres.Again(ctx, session, 5, func() error {
		// On a connection of a pool: a fresh one takes its place if that is to blame.
		return session.OneConnection(ctx, func(conn rate.Session) error {
			var readOnly, hidden bool
			var lacks string
			var differ []string
			err := conn.Row(ctx, ready, append(args, names), &readOnly, &lacks, &hidden, &differ)
			switch {
			case err != nil:
				return err
			case readOnly:
				return &pgconn.PgError{Severity: "ERROR", Code: postgres.ReadOnlyTransaction, Message: "transaction_read_only is on"}
			case lacks != "":
				return fmt.Errorf("%w: %s", rate.ErrPermission, lacks)
			case hidden:
				return postgres.ErrHidden
			case len(differ) > 0:
				return fmt.Errorf("%w: missing, or not as this build has it: %s: run \"pglimit migrate up\" or migrations.Up", rate.ErrNotMigrated, strings.Join(differ, ", "))
			}
			return nil
		})
	})
	return postgres.Explain(err)
}

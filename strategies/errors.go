package strategies

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
)

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	invalidSchemaName     = "3F000"
	serializationFailure  = "40001"
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
	undefinedTable        = "42P01"
	readOnlyTransaction   = "25006"
	lockNotAvailable      = "55P03"
)

// explain adds to an error of Postgres what to do about it. The original stays
// in the chain for errors.As.
func explain(err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return fmt.Errorf("pglimit: no answer from Postgres: %w", err)
	}
	switch pg.Code {
	case invalidSchemaName, undefinedFunction, undefinedTable:
		return fmt.Errorf("%w: run \"pglimit migrate up\" or migrations.Up: %w", pglimit.ErrNotMigrated, err)
	case insufficientPrivilege:
		return fmt.Errorf("%w: it needs USAGE on schema pglimit and SELECT, INSERT, UPDATE, DELETE on its tables: %w", pglimit.ErrPermission, err)
	case serializationFailure:
		return fmt.Errorf("pglimit: nothing was taken; decisions are made for READ COMMITTED: %w", err)
	case readOnlyTransaction:
		return fmt.Errorf("pglimit: nothing was taken; this server or transaction is read-only, connect to the primary (target_session_attrs=read-write): %w", err)
	}
	return fmt.Errorf("pglimit: no answer from Postgres: %w", err)
}

package migrations

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrBtreeGist: the strategy exclusion_range was not migrated, because the
// extension btree_gist is not in the database and the role may not create it, or
// the server does not have it. Everything else was migrated.
var ErrBtreeGist = errors.New("migrations: the strategy exclusion_range is not ready, the other three are: it needs the extension btree_gist")

var errNoPool = errors.New("migrations: the pool is nil")

// The SQLSTATEs that mean something here only.
const (
	duplicateTable    = "42P07"
	duplicateSchema   = "42P06"
	uniqueViolation   = "23505" // in a catalog: another makes the same thing at the same time
	duplicateFunction = "42723"
	duplicateObject   = "42710"
	dependentObjects  = "2BP01"
	undefinedFile     = "58P01" // older servers say so of an extension that is not installed
)

// failure is an error of one line.
type failure struct {
	what   string // "cannot commit"
	cause  error
	advice string // what to do, if that is known
}

func (f *failure) Error() string {
	text := "migrations: " + f.what + ": " + reason(f.cause)
	if f.advice != "" {
		text += ": " + f.advice
	}
	return text
}

// Unwrap returns what Postgres or the network said.
func (f *failure) Unwrap() error { return f.cause }

func fail(what string, cause error) *failure {
	dial := (*net.OpError)(nil) // of a driver that says no more
	if connect := (*pgconn.ConnectError)(nil); errors.As(cause, &connect) || errors.As(cause, &dial) && dial.Op == "dial" {
		what = "cannot connect to the database"
	}
	f := &failure{what: what, cause: cause}
	if postgres.Is(cause, postgres.NoSuchStatement, postgres.DuplicateStatement) {
		f.advice = "a pooler such as PgBouncer has mixed up prepared statements: give this pool default_query_exec_mode=exec"
	}
	return f
}

// reason returns the error's text on one line. Postgres's errors get their detail, which
// names the objects concerned.
func reason(err error) string {
	text := err.Error()
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
		text = pgErr.Error()
		if pgErr.Detail != "" {
			text += ": " + strings.ReplaceAll(pgErr.Detail, "\n", ", ")
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

// refused returns an ErrBtreeGist if the extension is missing and err says that it cannot
// be created, else nil.
func (s *session) refused(ctx context.Context, err error) error {
	var pgErr *pgconn.PgError
	// Not allowed, not installed on the server or not on its list, and no schema public for it.
	if !errors.As(err, &pgErr) || !postgres.Is(err, postgres.InsufficientPrivilege, postgres.FeatureNotSupported, undefinedFile, postgres.InvalidSchemaName) {
		return nil
	}
	if there, err := ask(ctx, s.tx, btreeGistExists); err != nil || there {
		return nil
	}
	return fmt.Errorf("%w: have an administrator run %q in this database (it is in PostgreSQL's contrib package) and migrate again, "+
		"or migrate without it (WithoutExclusionRange, --without-exclusion-range): %w", ErrBtreeGist, "create extension btree_gist", pgErr)
}

// explain adds to the error what to do about it. It may query the database.
func explain(ctx context.Context, db rate.Session, what string, err error) error {
	f := fail(what, err)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
		f.cause = pgErr
	}
	switch {
	case postgres.Is(err, postgres.InsufficientPrivilege):
		f.advice = missingRight(ctx, db)
	case postgres.Is(err, duplicateTable, duplicateFunction, duplicateObject):
		f.advice = "schema pglimit was migrated with another tool, or by hand: go on with that one"
	}
	return f
}

// missingRight says which role lacks which right and what grants it, as far as the
// catalog tells.
func missingRight(ctx context.Context, db rate.Session) string {
	var (
		role, database          string
		schemaOwner, tableOwner *string
		uses, reads             bool
	)
	err := db.Row(ctx, `
		select current_user::text, pg_catalog.current_database()::text,
			pg_catalog.pg_get_userbyid(n.nspowner)::text, pg_catalog.pg_get_userbyid(c.relowner)::text,
			coalesce(pg_catalog.has_schema_privilege(n.oid, 'usage'), false),
			coalesce(pg_catalog.has_table_privilege(c.oid, 'select'), false)
		from (select) one
		left join pg_catalog.pg_namespace n on n.nspname = 'pglimit'
		left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = 'goose_db_version'`, nil,
		&role, &database, &schemaOwner, &tableOwner, &uses, &reads)
	if err != nil {
		return ""
	}
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	switch {
	case schemaOwner == nil:
		return fmt.Sprintf("role %[1]s may not create schemas in database %[2]s: have an administrator run "+
			"'grant create on database %[2]s to %[1]s', or 'create schema pglimit authorization %[1]s'", quoted(role), quoted(database))
	case *schemaOwner == role:
		return ""
	case tableOwner == nil || *tableOwner == role: // or the role made the table in this transaction, which is rolled back
		return fmt.Sprintf("schema pglimit belongs to %[1]s, not to role %[2]s: have an administrator run "+
			"'alter schema pglimit owner to %[2]s'", quoted(*schemaOwner), quoted(role))
	case !uses || !reads:
		return fmt.Sprintf("role %[1]s may not read %[2]s: migrate as %[3]s, who owns it; to decide, %[1]s needs no migrations, and the rights that 'pglimit migrate grants %[1]s' prints",
			quoted(role), versionTable, quoted(*tableOwner))
	default:
		return fmt.Sprintf("schema pglimit was migrated by %[1]s, whose rights role %[2]s lacks: migrate as %[1]s",
			quoted(*tableOwner), quoted(role))
	}
}

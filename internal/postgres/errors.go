package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	FeatureNotSupported   = "0A000"
	ReadOnlyTransaction   = "25006"
	NoSuchStatement       = "26000"
	InvalidSchemaName     = "3F000"
	SerializationFailure  = "40001"
	DeadlockDetected      = "40P01"
	InsufficientPrivilege = "42501"
	UndefinedFunction     = "42883"
	UndefinedTable        = "42P01"
	DuplicateStatement    = "42P05"
	TooManyConnections    = "53300"
	LockNotAvailable      = "55P03"
	QueryCanceled         = "57014"
	CannotConnectNow      = "57P03" // the server is starting or stopping
)

// Is says that err is one of Postgres's, with one of the codes.
func Is(err error, codes ...string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains(codes, pg.Code)
}

const (
	migrateUp = `run "pglimit migrate up" or migrations.Up`
	useExec   = "give this pool default_query_exec_mode=exec (with pgx's default, cache_statement, PgBouncer has to be 1.21 or later and have max_prepared_statements)"
)

// meanings say what Postgres's errors mean, and what to do. The first row holds that has the code, or the beginning of
// it, perhaps behind a severity.
var meanings = []struct {
	codes  []string
	means  error
	advice string
}{
	// A pooler moved the call to a connection where the prepared statement is missing, or where another client's
	// has the same name, or is the unnamed one: with another number of arguments, or of other types (54000: more
	// dimensions than an array can have). A FATAL 08P01 is PgBouncer's own: it has no server.
	{[]string{NoSuchStatement, DuplicateStatement, "22P03", "54000", "ERROR 08P01"}, rate.ErrPooler, useExec},

	{[]string{"FATAL 22"}, rate.ErrSetting, "the server refuses a setting of the connection"},

	{[]string{InvalidSchemaName, UndefinedFunction, UndefinedTable}, rate.ErrNotMigrated, migrateUp},
	{[]string{"3D000"}, rate.ErrNotMigrated, "there is no such database"},
	{[]string{InsufficientPrivilege}, rate.ErrPermission, `"pglimit migrate grants ROLE" prints what it needs`},
	{[]string{"28"}, rate.ErrPermission, "the server refuses this login"}, // no such role, a wrong password, pg_hba.conf
	{[]string{ReadOnlyTransaction}, rate.ErrReadOnly, "nothing was taken (a standby, or default_transaction_read_only): connect to the primary (target_session_attrs=read-write)"},

	{[]string{LockNotAvailable}, fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken), ""},
	{[]string{SerializationFailure}, rate.ErrNothingTaken, "ask again, for each bucket alone if that does not help (decisions are made for READ COMMITTED)"},
	{[]string{QueryCanceled}, rate.ErrNothingTaken, ""},    // by statement_timeout, for example
	{[]string{"22", "23", "40"}, rate.ErrNothingTaken, ""}, // a value that cannot be stored, a row that cannot be, a deadlock

	{[]string{"08", "53", "57P", "58"}, rate.ErrUnavailable, ""}, // connection, resources, a server that stops or starts, system
}

// ErrHidden: row security is on for a table of ours, and this role does not pass it by. What is in rows that
// are not seen is not known, so nothing is said of them.
var ErrHidden = fmt.Errorf("%w: row security may hide rows of its tables from it: disable row level security there, or give the role BYPASSRLS", rate.ErrPermission)

// Explain adds to an error what it means and what to do about it. The original stays in
// the chain for errors.As.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if request := (*rate.RequestError)(nil); errors.As(err, &request) || errors.Is(err, rate.ErrPermission) || errors.Is(err, rate.ErrNotMigrated) {
		return err // found out without an error of Postgres's
	}
	if !errors.As(err, &pg) {
		return explainSilence(err)
	}
	switch {
	case pg.Code == InsufficientPrivilege && (pg.Routine == "check_enable_rls" || pg.Routine == "ExecWithCheckOptions"): // in any language
		return fmt.Errorf("%w: %w", ErrHidden, err)
	case pg.Code == UndefinedTable && strings.Contains(pg.Message, "pglimit.exclusion_range"): // others may be there
		return fmt.Errorf("exclusion_range needs the extension btree_gist (an administrator may have to create it first): %w: %s: %w", rate.ErrNotMigrated, migrateUp, err)
	}
	for _, m := range meanings {
		for _, code := range m.codes {
			if !strings.HasPrefix(pg.Code, code) && !strings.HasPrefix(pg.SeverityUnlocalized+" "+pg.Code, code) {
				continue
			}
			if m.advice != "" {
				return fmt.Errorf("%w: %s: %w", m.means, m.advice, err)
			}
			return fmt.Errorf("%w: %w", m.means, err)
		}
	}
	return refused(err) // other classes do not say whether it refused the request or is in trouble itself
}

func refused(err error) error { return fmt.Errorf("pglimit: Postgres refused: %w", err) }

// explainSilence is Explain for an error that is not Postgres's.
func explainSilence(err error) error {
	// Another client's statement took the arguments: our own return a row, with as many columns as are scanned, of
	// types that can be.
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, new(pgx.ScanArgError)) || strings.HasPrefix(err.Error(), "number of field descriptions") {
		return fmt.Errorf("%w: %s: %w", rate.ErrPooler, useExec, err)
	}
	if errors.Is(err, rate.ErrNothingTaken) { // refused before it was sent
		return err
	}
	if cure := Setting(err); cure != "" {
		return fmt.Errorf("%w: %s: %w", rate.ErrSetting, cure, err)
	}
	for _, ours := range []error{context.Canceled, context.DeadlineExceeded, pgx.ErrTxClosed, pgx.ErrTxCommitRollback} {
		if errors.Is(err, ours) { // the caller gave up, or its transaction had ended
			return fmt.Errorf("pglimit: no answer from Postgres: %w", err)
		}
	}
	return fmt.Errorf("%w: no answer: %w", rate.ErrUnavailable, err)
}

// ExplainStep is Explain for one of several transactions of a call, or for one that takes no tokens: the error is never
// that nothing was taken. What those before it did stays done.
func ExplainStep(err error) error {
	if explained := Explain(err); !errors.Is(explained, rate.ErrNothingTaken) {
		return explained
	}
	return refused(err)
}

// sqlError is an error of Postgres's that is not pgx's, such as a *pq.Error, with the same as pgx
// would say it, which the strategies understand.
type sqlError struct {
	error
	pg *pgconn.PgError
}

func (e *sqlError) Unwrap() []error { return []error{e.pg, e.error} }

// Err returns an error of a driver's, or of database/sql's, in pgx's terms, with the original
// in the chain.
func Err(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	var theirs interface { // of *pq.Error, which this package does not import
		error
		SQLState() string
		Get(field byte) string
	}
	if !errors.As(err, &pg) && errors.As(err, &theirs) {
		pg = &pgconn.PgError{
			Code: theirs.SQLState(), Severity: theirs.Get('S'), SeverityUnlocalized: theirs.Get('S'),
			Message: theirs.Get('M'), Detail: theirs.Get('D'), Hint: theirs.Get('H'), ConstraintName: theirs.Get('n'), Routine: theirs.Get('R'),
		}
		err = &sqlError{err, pg}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (pg == nil || pg.Code == QueryCanceled):
		return fmt.Errorf("%w: %v", ctx.Err(), err) //nolint:errorlint // it is the caller who cancelled, not Postgres
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, err)
	}
	return err
}

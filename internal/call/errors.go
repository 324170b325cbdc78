package call

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	invalidCatalogName    = "3D000"
	invalidSchemaName     = "3F000"
	serializationFailure  = "40001"
	deadlockDetected      = "40P01"
	insufficientPrivilege = "42501"
	UndefinedFunction     = "42883"
	UndefinedTable        = "42P01"
	ReadOnlyTransaction   = "25006"
	LockNotAvailable      = "55P03"
	featureNotSupported   = "0A000"
	queryCanceled         = "57014"
	noSuchStatement       = "26000"
	duplicateStatement    = "42P05"
	protocolViolation     = "08P01"
	invalidBinary         = "22P03"
	programLimit          = "54000" // more array dimensions than there can be: another statement read an argument as an array
)

// ErrHidden: row security is on for a table of ours, and this role does not pass it by. What is in rows that
// are not seen is not known, so nothing is said of them.
var ErrHidden = fmt.Errorf("%w: row security may hide rows of its tables from it: disable row level security there, or give the role BYPASSRLS", rate.ErrPermission)

// ErrKeepsChanging: a row is never again as a statement has seen it, because the caller's transaction sees an old one.
var ErrKeepsChanging = fmt.Errorf("%w: the row has changed, and the transaction's isolation hides how: use READ COMMITTED, or begin the transaction again", rate.ErrNothingTaken)

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
	if isMixedUp(err) {
		return fmt.Errorf("%w: give this pool default_query_exec_mode=exec (with pgx's default, cache_statement, PgBouncer has to be 1.21 or later and have max_prepared_statements): %w", rate.ErrPooler, err)
	}
	if !errors.As(err, &pg) {
		if errors.Is(err, rate.ErrNothingTaken) { // refused before it was sent
			return err
		}
		if cure := session.Setting(err); cure != "" {
			return fmt.Errorf("%w: %s: %w", rate.ErrSetting, cure, err)
		}
		for _, ours := range []error{context.Canceled, context.DeadlineExceeded, pgx.ErrTxClosed, pgx.ErrTxCommitRollback} {
			if errors.Is(err, ours) { // the caller gave up, or its transaction had ended
				return fmt.Errorf("pglimit: no answer from Postgres: %w", err)
			}
		}
		return fmt.Errorf("%w: no answer: %w", rate.ErrUnavailable, err)
	}
	switch pg.Code {
	case invalidSchemaName, UndefinedFunction, UndefinedTable:
		return fmt.Errorf("%w: run \"pglimit migrate up\" or migrations.Up: %w", rate.ErrNotMigrated, err)
	case invalidCatalogName:
		return fmt.Errorf("%w: there is no such database: %w", rate.ErrNotMigrated, err)
	case insufficientPrivilege:
		if pg.Routine == "check_enable_rls" || pg.Routine == "ExecWithCheckOptions" { // in any language
			return fmt.Errorf("%w: %w", ErrHidden, err)
		}
		return fmt.Errorf("%w: \"pglimit migrate grants ROLE\" prints what it needs: %w", rate.ErrPermission, err)
	case ReadOnlyTransaction:
		return fmt.Errorf("%w, or this transaction, and nothing was taken (a standby, or default_transaction_read_only): connect to the primary (target_session_attrs=read-write): %w", rate.ErrReadOnly, err)
	case LockNotAvailable:
		return fmt.Errorf("%w: %w: %w", rate.ErrLocked, rate.ErrNothingTaken, err)
	case serializationFailure:
		return fmt.Errorf("%w: ask again, for each bucket alone if that does not help (decisions are made for READ COMMITTED): %w", rate.ErrNothingTaken, err)
	}
	if pg.SeverityUnlocalized == "FATAL" && strings.HasPrefix(pg.Code, "22") {
		return fmt.Errorf("%w: the server refuses a setting of the connection: %w", rate.ErrSetting, err)
	}
	// Only these classes say for certain whether Postgres refused the request or is in trouble itself.
	switch pg.Code[:min(2, len(pg.Code))] {
	case "22", "23", "40": // a value that cannot be stored, a row that cannot be, a deadlock
		return fmt.Errorf("%w: %w", rate.ErrNothingTaken, err)
	case "28": // no such role, a wrong password, pg_hba.conf
		return fmt.Errorf("%w: the server refuses this login: %w", rate.ErrPermission, err)
	case "08", "53", "58": // connection, resources, system
		return fmt.Errorf("%w: %w", rate.ErrUnavailable, err)
	}
	if pg.Code == queryCanceled { // by statement_timeout, for example
		return fmt.Errorf("%w: %w", rate.ErrNothingTaken, err)
	}
	if strings.HasPrefix(pg.Code, "57P") { // the server is stopping or starting
		return fmt.Errorf("%w: %w", rate.ErrUnavailable, err)
	}
	return fmt.Errorf("pglimit: Postgres refused: %w", err)
}

// ExplainStep is Explain for one of several transactions of a call. What those before it did stays done,
// so the error is never that nothing was taken.
func ExplainStep(err error) error {
	if explained := Explain(err); !errors.Is(explained, rate.ErrNothingTaken) {
		return explained
	}
	return fmt.Errorf("pglimit: Postgres refused: %w", err)
}

// isMixedUp says whether Postgres ran another prepared statement than this call meant, or
// found none. A pooler causes this: it moved the call to a connection where the statement is
// missing, or where another client's statement has the same name, or is the unnamed one.
func isMixedUp(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		// Another client's statement took the arguments: the strategies' own statements return
		// a row, with as many columns as are scanned, of types that can be.
		return errors.Is(err, pgx.ErrNoRows) || errors.As(err, new(pgx.ScanArgError)) || strings.HasPrefix(err.Error(), "number of field descriptions")
	}
	switch pg.Code {
	case noSuchStatement, duplicateStatement, invalidBinary, programLimit:
		return true
	case protocolViolation: // another number of arguments. If FATAL, the pooler itself failed: it has no server
		return pg.SeverityUnlocalized == "ERROR"
	}
	return false
}

package cleanup

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	// ErrNotDue means that a run of the job was claimed less than nine tenths of an
	// interval ago, here or elsewhere. Most instances get it at most ticks.
	ErrNotDue = errors.New("cleanup: not due yet")

	// ErrLocked means that another run of the job is under way, here or in another
	// instance.
	ErrLocked = errors.New("cleanup: another run is under way")

	// ErrLost means that the lock ended before the run did, so another instance may
	// have begun one.
	ErrLost = errors.New("cleanup: the lock was lost during the run")

	// ErrStopped means that the run was asked to end before it was finished, or that
	// the Cleaner was stopped before. The next run starts over.
	ErrStopped = errors.New("cleanup: stopped")

	// ErrStarted means that the Cleaner was started before.
	ErrStarted = errors.New("cleanup: already started")
)

// SQLSTATE codes, see appendix A of the PostgreSQL manual.
const (
	invalidSchemaName     = "3F000"
	undefinedTable        = "42P01"
	readOnlyTransaction   = "25006"
	insufficientPrivilege = "42501"
	queryCanceled         = "57014" // by statement_timeout, as a rule
	noSuchStatement       = "26000"
	duplicateStatement    = "42P05"
)

// explain says what went wrong in a step of the Locker, and what to do.
func explain(step string, err error) error {
	switch sqlState(err) {
	case invalidSchemaName, undefinedTable:
		return fmt.Errorf("%w: run \"pglimit migrate up\" or migrations.Up: %w", rate.ErrNotMigrated, err)
	case insufficientPrivilege:
		return fmt.Errorf("%w: it needs USAGE on schema pglimit and SELECT, INSERT, UPDATE on pglimit.schedule and pglimit.job_locks (pglimit migrate grants ROLE --for decide-and-sweep): %w", rate.ErrPermission, err)
	case readOnlyTransaction:
		return fmt.Errorf("%w (a standby, or default_transaction_read_only): connect to the primary (target_session_attrs=read-write): %w", rate.ErrReadOnly, err)
	case noSuchStatement, duplicateStatement:
		return fmt.Errorf("cleanup: %s: a pooler such as PgBouncer has mixed up prepared statements: give this pool default_query_exec_mode=exec: %w", step, err)
	}
	return fmt.Errorf("cleanup: %s: %w", step, err)
}

// sqlState of an error of Postgres, or "" for any other.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

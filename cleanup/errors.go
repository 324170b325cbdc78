package cleanup

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
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

// explain says what went wrong in a step of the Locker, and what to do. The semaphore has explained its errors already,
// as those of a call that takes something.
func explain(step string, err error) error {
	if errors.Is(err, rate.ErrUnavailable) {
		return fmt.Errorf("cleanup: %s: %w", step, err)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		err = pg
	}
	if postgres.Is(err, postgres.InsufficientPrivilege) {
		const needs = `"pglimit migrate grants ROLE --for decide-and-sweep" prints what it needs`
		return fmt.Errorf("%w: %s: %w", rate.ErrPermission, needs, err)
	}
	return fmt.Errorf("cleanup: %s: %w", step, postgres.ExplainStep(err))
}

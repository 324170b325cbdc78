package rate

import (
	"errors"
	"fmt"
)

// ErrNotMigrated: the schema pglimit, or what the strategy needs of it, is not in
// the database. Run "pglimit migrate up" or migrations.Up.
var ErrNotMigrated = errors.New("pglimit: the database is not migrated")

// ErrPermission: the database role may not do what the strategy does.
var ErrPermission = errors.New("pglimit: the database role lacks a right")

// ErrNothingTaken: Postgres refused the call, and so took nothing. Of a call for several
// buckets, one of them may be to blame: ask for each alone.
//
// A strategy returns it for a lock that was not available (then also [ErrLocked]), a
// serialization failure, a key that the database's encoding cannot hold, a statement that
// took too long, a bad row. It does not return it where no bucket is to blame: not
// migrated, no rights, read-only, no connection.
var ErrNothingTaken = errors.New("pglimit: nothing was taken")

// ErrLocked: somebody else holds the bucket's row locked, for longer than an impatient call
// waits (see [Request].Impatient). Nothing was taken.
var ErrLocked = errors.New("pglimit: the bucket is locked by somebody else")

// ErrUnavailable: Postgres cannot be reached, does not answer, or refuses for reasons of its
// own, such as a lack of connections. What was sent may have been taken.
var ErrUnavailable = errors.New("pglimit: Postgres is unavailable")

// ErrOverloaded: as many callers as Config.MaxWaiting of the Limiter allows wait for an answer already.
// Postgres is too slow for what is asked of it, or does not answer at all, or Config.Timeout is too long for it.
var ErrOverloaded = errors.New("pglimit: too many callers are waiting for Postgres (Config.MaxWaiting)")

// ErrClosed: the Limiter was closed.
var ErrClosed = errors.New("pglimit: the limiter is closed")

// LimitError is a [Limit] that cannot be kept.
type LimitError struct {
	Limit Limit
	Field string // of Limit
	Why   string // "is 0: it must be at least 1"
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("pglimit: Limit.%s %s", e.Field, e.Why)
}

// RequestError is a [Request] that no bucket could answer.
type RequestError struct {
	Field string // of Request
	Why   string // "is -1: it must not be negative"
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("pglimit: Request.%s %s", e.Field, e.Why)
}

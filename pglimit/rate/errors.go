package rate

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotMigrated: the schema pglimit, or a part of it that the strategy needs, is not in
// the database. Run "pglimit migrate up" or migrations.Up.
var ErrNotMigrated = errors.New("pglimit: the database is not migrated")

// ErrPermission: the database role may not do what the strategy does, or may not log in.
var ErrPermission = errors.New("pglimit: the database role lacks a right")

// ErrSetting: a setting of the connection, the role or the database, or a certificate, keeps this process from
// asking. The error says which, and what to set.
var ErrSetting = errors.New("pglimit: a setting of the connection is in the way")

// ErrPooler: a pooler between this process and Postgres, such as PgBouncer, has mixed up
// prepared statements. Whether something was taken is not known. The error says what to set.
var ErrPooler = errors.New("pglimit: a pooler such as PgBouncer has mixed up prepared statements")

// ErrNothingTaken: Postgres refused the call, and so took nothing. In a call for several
// buckets, one of them may be to blame: ask again for each bucket alone.
//
// A strategy returns it for a lock that was not available (also [ErrLocked], if it waited), a
// serialization failure, a key that the database's encoding cannot hold, a statement that
// took too long, a bad row. It returns another error if no bucket is to blame: not
// migrated, no rights, read-only, no connection.
var ErrNothingTaken = errors.New("pglimit: nothing was taken")

// ErrLocked: somebody else held the bucket's row locked for longer than an impatient call
// waits (see [Request].Impatient). Nothing was taken.
var ErrLocked = errors.New("pglimit: the bucket is locked by somebody else")

// HeldError is an [ErrLocked] that says which buckets' rows are held. A strategy may return it for
// a call for several buckets.
type HeldError struct {
	Held []Bucket
	Err  error
}

func (e *HeldError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *HeldError) Unwrap() error { return e.Err }

// ErrUnavailable: Postgres cannot be reached, does not answer, or refuses for reasons of its
// own, such as a lack of connections. The call may have taken its tokens or not.
var ErrUnavailable = errors.New("pglimit: Postgres is unavailable")

// ErrReadOnly: the server, or the role's sessions there, cannot write. It is a standby, or
// default_transaction_read_only is on. It is an [ErrUnavailable], and nothing was taken.
var ErrReadOnly = fmt.Errorf("%w: this server, or this transaction, is read-only", ErrUnavailable)

// ErrOverloaded: as many callers as the Limiter's Config.MaxWaiting allows are already waiting.
// Postgres is too slow for the load or does not answer, or Config.Timeout is too long.
var ErrOverloaded = errors.New("pglimit: too many callers are waiting for Postgres (Config.MaxWaiting)")

// ErrClosed: the Limiter was closed.
var ErrClosed = errors.New("pglimit: the limiter is closed")

// LimitError says why a [Limit] is not valid, or why a strategy cannot keep it.
type LimitError struct {
	Limit Limit
	Field string // of Limit
	Why   string // "is 0: it must be at least 1"
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("pglimit: Limit.%s %s", e.Field, e.Why)
}

// RuleError says why the rule of the table pglimit.limits that holds for a request cannot be read or kept. Requests
// under it get no decision, also none of OnError, until somebody corrects, disables or deletes the rule.
type RuleError struct {
	Rule *LimitRule
	Err  error // a *LimitError, if the strategy cannot keep its limit, or Postgres does not know its time zone
}

func (e *RuleError) Error() string {
	return fmt.Sprintf("pglimit: row %d of pglimit.limits: %s", e.Rule.ID, strings.TrimPrefix(e.Err.Error(), "pglimit: "))
}

// Unwrap returns Err.
func (e *RuleError) Unwrap() error { return e.Err }

// RequestError says why a [Request] is not valid.
type RequestError struct {
	Field string // of Request; "At" or "Source" of the Decision that a Refund or a Settle is for
	Why   string // "is -1: it must not be negative"
}

func (e *RequestError) Error() string {
	of := "Request"
	if e.Field == "At" || e.Field == "Source" {
		of = "Decision"
	}
	return fmt.Sprintf("pglimit: %s.%s %s", of, e.Field, e.Why)
}

// BlockError says why a [Block] is not valid.
type BlockError struct {
	Block Block
	Field string // of Block
	Why   string // "is 0: it must be at least 1"
}

func (e *BlockError) Error() string {
	return fmt.Sprintf("pglimit: Block.%s %s", e.Field, e.Why)
}

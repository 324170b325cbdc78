package pglimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

// Cause of a request's failure: why no decision was known.
type Cause int

// What a failure may come of.
const (
	CauseOther       Cause = iota // an error of Postgres's, or of the strategy's, of no kind below
	CauseClosed                   // the Limiter was closed
	CauseUnavailable              // Postgres could not be reached, or had no room
	CauseTimeout                  // no answer within Config.Timeout, or the context's deadline
	CauseBreaker                  // not asked, because Postgres had just not answered others
	CauseOverloaded               // as many as Config.MaxWaiting were waiting
	CauseNotMigrated              // the schema or a part of it is missing
	CausePermission               // the role lacks a right
	CauseRefused                  // Postgres refused this request, such as for a locked row
)

// causes in the order of the constants. The first that fits an error is its cause, looked for
// from the second on.
var causes = [...]struct {
	name string
	fits func(error) bool
}{
	CauseOther:       {"other", func(error) bool { return true }},
	CauseClosed:      {"closed", func(err error) bool { return errors.Is(err, ErrClosed) }},
	CauseUnavailable: {"unavailable", func(err error) bool { return errors.Is(err, ErrUnavailable) && !isTimeout(err) && !isOpen(err) }},
	CauseTimeout:     {"timeout", isTimeout},
	CauseBreaker:     {"breaker", isOpen},
	CauseOverloaded:  {"overloaded", func(err error) bool { return errors.Is(err, ErrOverloaded) }},
	CauseNotMigrated: {"not_migrated", func(err error) bool { return errors.Is(err, ErrNotMigrated) }},
	CausePermission:  {"permission", func(err error) bool { return errors.Is(err, ErrPermission) }},
	CauseRefused:     {"refused", func(err error) bool { return errors.Is(err, ErrNothingTaken) }},
}

func isTimeout(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
func isOpen(err error) bool    { return errors.Is(err, circuit.ErrOpen) }

// String is a word in lower case, such as "not_migrated".
func (c Cause) String() string {
	if c < 0 || int(c) >= len(causes) {
		return fmt.Sprintf("Cause(%d)", int(c))
	}
	return causes[c].name
}

// CauseOf an error of Allow and its like.
func CauseOf(err error) Cause {
	for c := CauseOther + 1; int(c) < len(causes); c++ {
		if causes[c].fits(err) {
			return c
		}
	}
	return CauseOther
}

// level to log at: what somebody has to set right does not end by itself.
func (c Cause) level() slog.Level {
	if c == CauseNotMigrated || c == CausePermission {
		return slog.LevelError
	}
	return slog.LevelWarn
}

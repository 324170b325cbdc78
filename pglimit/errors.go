package pglimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

// timeoutError is the end of Config.Timeout. Whether a request that was sent has been granted is
// not known.
type timeoutError struct {
	timeout time.Duration
	busy    int // connections of the pool, if all were in use
	err     error
}

func (e *timeoutError) Error() string {
	if e.busy > 0 {
		return fmt.Sprintf("pglimit: no decision within Config.Timeout (%v), and all %d connections of its pool are in use (by others, if the application shares it: give the Limiter a pool of its own; or by calls that wait for rows): %v", e.timeout, e.busy, e.err)
	}
	return fmt.Sprintf("pglimit: no decision within Config.Timeout (%v): %v", e.timeout, e.err)
}

func (e *timeoutError) Unwrap() []error {
	return []error{ErrUnavailable, context.DeadlineExceeded, e.err}
}

var errNoStrategy = errors.New("pglimit: New needs a strategy, such as strategies.TokenBucket{}")

// ConfigError says why [New] refuses a [Config].
type ConfigError struct {
	Field string // of Config
	Err   error  // a *LimitError for Limit, a *BlockError for Block, else only the reason: "is empty: ..."
}

func (e *ConfigError) Error() string {
	var limit *LimitError
	if errors.As(e.Err, &limit) {
		return fmt.Sprintf("pglimit: Config.%s.%s %s", e.Field, limit.Field, limit.Why)
	}
	var block *BlockError
	if errors.As(e.Err, &block) {
		return fmt.Sprintf("pglimit: Config.%s.%s %s", e.Field, block.Field, block.Why)
	}
	return fmt.Sprintf("pglimit: Config.%s %v", e.Field, e.Err)
}

// Unwrap returns what is wrong with the field.
func (e *ConfigError) Unwrap() error { return e.Err }

// IndexError is an error of one of the requests of a [Limiter.DoEach] or [Limiter.DoAll].
type IndexError struct {
	Index int // of the request, from 0
	Err   error
}

func (e *IndexError) Error() string { return fmt.Sprintf("request %d: %v", e.Index, e.Err) }

// Unwrap returns Err.
func (e *IndexError) Unwrap() error { return e.Err }

// Cause says why no decision was known.
type Cause int

// The causes of a failure.
const (
	CauseOther       Cause = iota // any other error of Postgres's or of the strategy's
	CauseClosed                   // the Limiter was closed
	CauseUnavailable              // Postgres could not be reached, or refused for reasons of its own
	CauseTimeout                  // no answer within Config.Timeout, or the context's deadline
	CauseBreaker                  // the circuit breaker is open: Postgres was not asked
	CauseOverloaded               // as many as Config.MaxWaiting were waiting
	CauseNotMigrated              // the schema or a part of it is missing
	CausePermission               // the role lacks a right
	CauseSetting                  // a setting of the connection, the role or the database is in the way
	CausePooler                   // PgBouncer has mixed up prepared statements
	CauseRefused                  // Postgres refused this request, for instance for a locked row
)

// causes are in the order of the constants. An error's cause is the first that fits after
// CauseOther; if none does, CauseOther.
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
	CauseSetting:     {"setting", func(err error) bool { return errors.Is(err, ErrSetting) }},
	CausePooler:      {"pooler", func(err error) bool { return errors.Is(err, ErrPooler) }},
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

// CauseOf returns the cause of an error that a Limiter returned or passed to OnError.
func CauseOf(err error) Cause {
	for c := CauseOther + 1; int(c) < len(causes); c++ {
		if causes[c].fits(err) {
			return c
		}
	}
	return CauseOther
}

// isSetUp says that somebody has to set something right: it is no outage, which ends by itself.
func (c Cause) isSetUp() bool {
	return c == CauseNotMigrated || c == CausePermission || c == CauseSetting || c == CausePooler
}

// level is what to log at: a failure that somebody has to repair is an error, not a warning.
func (c Cause) level() slog.Level {
	if c.isSetUp() {
		return slog.LevelError
	}
	return slog.LevelWarn
}

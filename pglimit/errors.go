package pglimit

import (
	"errors"
	"fmt"
)

// ErrOverloaded: as many callers as [Config].MaxWaiting wait for an answer already.
// Postgres is too slow for what is asked of it, or does not answer at all: set a Timeout.
var ErrOverloaded = errors.New("pglimit: too many callers are waiting for Postgres (Config.MaxWaiting)")

// ErrClosed: the [Limiter] was closed.
var ErrClosed = errors.New("pglimit: the limiter is closed")

// ConfigError is a [Config] that [New] refuses.
type ConfigError struct {
	Field string // of Config
	Err   error  // a *LimitError for Limit, else only why: "is empty: ..."
}

func (e *ConfigError) Error() string {
	var limit *LimitError
	if errors.As(e.Err, &limit) {
		return fmt.Sprintf("pglimit: Config.%s.%s %s", e.Field, limit.Field, limit.Why)
	}
	return fmt.Sprintf("pglimit: Config.%s %v", e.Field, e.Err)
}

// Unwrap returns what is wrong with the field.
func (e *ConfigError) Unwrap() error { return e.Err }

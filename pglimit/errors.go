package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"
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

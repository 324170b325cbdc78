package pglimit

import (
	"errors"
	"fmt"
)

// ErrNotMigrated: the schema pglimit, or what the strategy needs of it, is not in
// the database. Run "pglimit migrate up" or migrations.Up.
var ErrNotMigrated = errors.New("pglimit: the database is not migrated")

// ErrPermission: the database role may not do what the strategy does.
var ErrPermission = errors.New("pglimit: the database role lacks a right")

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

package pglimit

import (
	"errors"
	"fmt"
)

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

package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// withTimeout gives each call at most this long. What was sent and not answered
// in time may have been granted: nobody knows, which is what the error says.
func withTimeout(timeout time.Duration, next take) take {
	return func(parent context.Context, requests []Request) ([]Decision, error) {
		ctx, cancel := context.WithTimeout(parent, timeout)
		defer cancel()
		decisions, err := next(ctx, requests)
		if errors.Is(err, context.DeadlineExceeded) && parent.Err() == nil {
			err = fmt.Errorf("pglimit: no decision within Config.Timeout (%v): %w", timeout, err)
		}
		return decisions, err
	}
}

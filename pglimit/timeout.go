package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// withTimeout gives each call at most this long. What was sent and not answered
// in time may have been granted: nobody knows, which is what the error says.
func withTimeout(timeout time.Duration, next decide) decide {
	return func(parent context.Context, request Request) (Decision, error) {
		ctx, cancel := context.WithTimeout(parent, timeout)
		defer cancel()
		decision, err := next(ctx, request)
		// The error itself need not say so: a pool may be set up to cancel a query on
		// the server, which then answers with an error of its own.
		if err != nil && errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded) && parent.Err() == nil {
			err = fmt.Errorf("pglimit: no decision within Config.Timeout (%v): %w", timeout, err)
		}
		return decision, err
	}
}

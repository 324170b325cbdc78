package pglimit

import (
	"context"
	"errors"
	"time"
)

// withFallback asks onError about a request that failed. The caller's own cancellation
// is not a failure of the limiter's: nobody waits for the answer any more, and it is
// returned as it is.
func withFallback(onError func(context.Context, Request, error) (Decision, error), next decide) decide {
	return func(ctx context.Context, request Request) (Decision, error) {
		decision, err := next(ctx, request)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) {
			return decision, err
		}
		if decision, err = onError(ctx, request, err); err != nil {
			return Decision{}, err
		}
		return decision, nil
	}
}

// FailOpen, as [Config.OnError], grants what was asked when no decision is
// known: for limits that protect comfort. At is the zero time, by which such a
// decision can be told from one of Postgres.
func FailOpen(_ context.Context, request Request, _ error) (Decision, error) {
	return Decision{Allowed: true, Granted: request.Tokens}, nil
}

// FailClosed, as [Config.OnError], denies when no decision is known, and asks to come
// back in a second: for limits that protect something that must not be overrun. At is
// the zero time.
func FailClosed(context.Context, Request, error) (Decision, error) {
	return Decision{RetryAfter: time.Second}, nil
}

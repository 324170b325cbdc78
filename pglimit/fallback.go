package pglimit

import (
	"context"
	"errors"
	"time"
)

// withFallback asks onError once for each request of a call that failed. The
// caller's own cancellation is not a failure of the limiter's: nobody waits for
// the answer any more, and it is returned as it is.
func withFallback(onError func(context.Context, Request, error) (Decision, error), next take) take {
	return func(ctx context.Context, requests []Request) ([]Decision, error) {
		decisions, err := next(ctx, requests)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) {
			return decisions, err
		}
		decisions = make([]Decision, len(requests))
		for i, request := range requests {
			var failed error
			if decisions[i], failed = onError(ctx, request, err); failed != nil {
				return nil, failed
			}
		}
		return decisions, nil
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

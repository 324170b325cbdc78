package pglimit

import (
	"context"
	"errors"
	"time"
)

// RoundTrip is one call of the strategy, which [Config].OnRoundTrip gets. It may have served
// many callers.
type RoundTrip struct {
	Limiter, Strategy string // names

	// Operation is "take", "take_groups" (of AllowAll), "take_once" (with an ID), "take_or_block",
	// "lease", "give_back", "reset" or "reset_all".
	Operation string

	// Requests is how many requests a take sent: identical requests of several callers count
	// as one. Of any other operation it is 0.
	Requests int

	// Duration from the call to the answer, with the time that it waited for a connection of
	// the pool.
	Duration time.Duration

	// Outcome is "ok" if the call succeeded; "canceled" if nobody waited for the answer any more,
	// because the callers cancelled or (with Combine) ran out of time; else the [Cause], such as
	// "unavailable".
	Outcome string

	Err error // nil if the call succeeded
}

// observed calls Postgres through the circuit breaker, and OnRoundTrip after it.
func (l *Limiter) observed(ctx context.Context, operation string, requests int, call func(context.Context) error) error {
	var began time.Time
	err := l.circuit.Call(ctx, func(ctx context.Context) error {
		began = time.Now()
		return call(ctx)
	})
	if began.IsZero() { // the breaker is open: Postgres was not asked
		return err
	}
	l.config.OnRoundTrip(ctx, RoundTrip{
		Limiter: l.config.Name, Strategy: l.strategy.Name(), Operation: operation, Requests: requests,
		Duration: time.Since(began), Outcome: outcome(ctx, err), Err: err,
	})
	return err
}

// outcome of a call, in a word. err alone may not show that the context ended the call: see late.
func outcome(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(ctx.Err(), context.Canceled):
		return "canceled"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return CauseTimeout.String()
	}
	return CauseOf(err).String()
}

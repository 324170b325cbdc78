package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/local"
)

// fallback is what becomes of a request of which no decision is known, if that is an outage.
// The caller's own cancellation is none: nobody waits for the answer any more.
func (l *Limiter) fallback(ctx context.Context, r Request, err error) (Decision, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		l.counters.canceled.Add(1)
		return Decision{}, err
	}
	cause := CauseOf(err)
	l.counters.failed[cause].Add(1)
	if cause == CauseClosed {
		return Decision{}, err
	}
	l.failures.hear(ctx, r.Key, cause, err)
	if l.config.OnError == nil || cause == CauseNotMigrated || cause == CausePermission {
		return Decision{}, err
	}
	d, err := l.config.OnError(ctx, r, err)
	if err != nil {
		return Decision{}, err
	}
	d.Source = FromFallback
	return d, nil
}

// FailOpen, as [Config.OnError], grants what was asked when no decision is
// known: for limits that protect comfort.
func FailOpen(_ context.Context, request Request, _ error) (Decision, error) {
	return Decision{Allowed: true, Granted: request.Tokens}, nil
}

// FailClosed, as [Config.OnError], denies when no decision is known, and asks to come
// back in a second: for limits that protect something that must not be overrun.
func FailClosed(context.Context, Request, error) (Decision, error) {
	return Decision{RetryAfter: time.Second}, nil
}

// FailLocal makes a [Config.OnError] that decides in this process when no decision is known,
// by its share of the limit: an instances-th of the rate and of the burst, but a burst of one
// at least.
//
// How far over: while Postgres does not answer, all instances together grant at most the
// limit (and one token each where the burst is smaller than their number), beginning with a
// full burst, on top of what Postgres had granted. While it answers some of them only, those
// that it does not answer grant their shares besides.
//
// A request for more at once than its share of the burst is denied. It remembers 65,536 keys. While all of those have been used lately, it denies new ones
// rather than forget one that has used up its share.
//
// It panics if instances is less than 1.
func FailLocal(instances int) func(context.Context, Request, error) (Decision, error) {
	if instances < 1 {
		//nolint:forbidigo // a constant of the program's, as a rule: it shows when it starts, and not in the outage
		panic(fmt.Sprintf("pglimit: FailLocal(%d): the number of instances that share the limit must be at least 1", instances))
	}
	buckets := local.New(instances)
	return func(_ context.Context, r Request, _ error) (Decision, error) {
		return buckets.Take(&r, time.Now()), nil
	}
}

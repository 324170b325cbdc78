package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/pglimit/internal/local"
	"github.com/pglimit/ratelimit/pglimit/internal/top"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fallback makes of the claim's error what the caller gets. It counts and logs the failure, and calls
// OnError for each request if it may be an outage.
func (l *Limiter) fallback(ctx context.Context, c *claim) {
	if errors.As(c.Err, new(*RequestError)) { // an ID that was granted something else: only Postgres knows
		return
	}
	final, why := l.failed(ctx, &c.Requests[0], c.Err)
	c.Fail(why)
	if !final {
		l.answerBy(ctx, c, l.config.OnError, why, FromFallback)
	}
}

// Failure is a request of which no decision is known, as [Config].OnError gets it, or one that [NewKeys] refuses.
type Failure struct {
	// Request to be answered. It is complete: its Limit is the one that holds.
	Request Request

	// Group are the requests of the [Limiter.DoAll] which no rule grants, the Request among them, at Index. A request
	// by itself is a group of one.
	Group []Request
	Index int

	// Err is why: see [CauseOf].
	Err error

	rules  *limits.Stage // counts live instances
	shared *[]Decision   // of the Group, once FailLocal has decided it
}

// answerBy answers each request of the claim by a function of the user's, such as OnError. A group is granted if all of
// its requests are.
func (l *Limiter) answerBy(ctx context.Context, c *claim, answer func(context.Context, Failure) (Decision, error), why error, source Source) {
	failed := Failure{Group: make([]Request, len(c.Requests)), Err: why, rules: l.rules, shared: new([]Decision)}
	for i := range c.Requests {
		failed.Group[i] = told(&c.Requests[i])
	}
	all := true
	for i := range c.Requests {
		failed.Request, failed.Index = failed.Group[i], i
		d, err := answer(ctx, failed)
		if err != nil {
			c.Fail(err)
			return
		}
		d.Source = source
		c.Decisions[i], all = d, all && d.Allowed
	}
	c.Err = nil
	for i := range c.Decisions {
		if d := &c.Decisions[i]; c.IsGroup() {
			d.Granted = 0
			if all {
				d.Granted = c.Requests[i].Tokens
			}
		}
	}
}

// failed counts and logs a failure. final says that the caller gets the error, as it is returned.
// If the caller cancelled, only that is counted: nobody waits for the answer any more.
func (l *Limiter) failed(ctx context.Context, r *rate.Request, err error) (final bool, told error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		l.counters.canceled.Add(1)
		return true, err
	}
	if l.waiting.Closed() && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %v", ErrClosed, err) //nolint:errorlint // whatever it was, it is over
	}
	cause := CauseOf(err)
	l.counters.failed[cause].Add(1)
	l.top.Told(r.Limiter, top.Failed)
	if cause == CauseClosed {
		return true, err
	}
	l.failures.failed(ctx, r.Key, cause, err)
	return l.config.OnError == nil || cause.isSetUp() || errors.As(err, new(*LimitError)), err
}

// FailOpen, as [Config.OnError], grants every request of which no decision is known: for
// limits that protect comfort.
func FailOpen(_ context.Context, failed Failure) (Decision, error) {
	return Decision{Allowed: true, Granted: failed.Request.Tokens}, nil
}

// FailClosed, as [Config.OnError], denies every request of which no decision is known, with a
// RetryAfter of a second: for limits that protect something that must not be overrun.
func FailClosed(context.Context, Failure) (Decision, error) {
	return Decision{RetryAfter: time.Second}, nil
}

// FailLocal makes a [Config.OnError] that decides in this process when no decision is known.
// Each process has a share of the limit: rate and burst divided by instances, with a burst of
// at least one.
//
// While Postgres does not answer, all instances together grant at most the limit, beginning
// with a full burst, on top of what Postgres had granted. (If the burst is smaller than
// instances, that burst is one token for each instance.) While Postgres answers only some
// instances, the others grant their shares on top. A server that comes and goes makes it no more: in any span of
// time in which no instance was restarted, Postgres grants at most the limit, and all instances together at most the
// limit once more. At 20 a second with a burst of 40, that is 880 in 20 seconds instead of 440.
//
// A group of [Limiter.DoAll] is granted whole or not at all.
//
// If the Limiter counts live instances, see [LimitsConfig].CountInstances, their number takes the place of instances.
// It is that of the last time that Postgres answered. An instance that was not counted by then, because it had just
// started, denies: the others do not know that they would have to share with it.
//
// An all-or-nothing request for more than the share of the burst is denied. FailLocal remembers
// 65,536 keys. If none of their buckets is full again (it looks once a second at most), it
// denies new keys rather than forget a key that has used its share.
//
// As long as [Config].Limits were never read there is no limit to have a share of: the error is [ErrNoLimits].
//
// It panics if instances is less than 1.
func FailLocal(instances int) func(context.Context, Failure) (Decision, error) {
	if instances < 1 {
		//nolint:forbidigo // instances is usually a constant: the panic comes when the program starts, not in the outage
		panic(fmt.Sprintf("pglimit: FailLocal(%d): the number of instances that share the limit must be at least 1", instances))
	}
	all := local.New()
	return func(ctx context.Context, failed Failure) (Decision, error) {
		if errors.Is(failed.Err, ErrNoLimits) {
			return Decision{}, failed.Err
		}
		share := instances
		if live, counts := failed.rules.Live(); counts && live == 0 {
			return FailClosed(ctx, failed)
		} else if counts {
			share = live
		}
		buckets := all.Of(share)
		if len(failed.Group) <= 1 || failed.shared == nil || failed.Request != failed.Group[failed.Index] {
			r := failed.Request.asked() // by itself, or changed by who calls this
			return buckets.Take(&r, time.Now()), nil
		}
		if *failed.shared == nil {
			*failed.shared = buckets.TakeAll(asked(failed.Group), time.Now())
		}
		return (*failed.shared)[failed.Index], nil
	}
}

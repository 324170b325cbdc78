package pglimit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// roundTrip asks the strategy. It checks the decisions, and remembers denials.
func (l *Limiter) roundTrip(ctx context.Context, requests []rate.Request) (decisions []Decision, err error) {
	asked, looked := l.denials.Now(), l.newKeys.Now()
	err = l.call(ctx, operation(requests), len(requests), func(ctx context.Context) error {
		straight, err := l.nodes.at(ctx, requests[0].Key, l.session, func(session Session) (err error) {
			decisions, err = l.strategy.Take(ctx, session, requests)
			return err
		})
		if straight {
			l.counters.straightTrips.Add(1)
		}
		if err == nil {
			err = checkDecisions(l.strategy, requests, decisions)
		}
		return err
	})
	if err != nil {
		return nil, unknownZone(requests, err)
	}
	for i := range decisions {
		decisions[i].Source = FromDatabase
	}
	l.learn(requests, decisions, asked)
	l.newKeys.Learn(requests, decisions, looked)
	return decisions, nil
}

// unknownZone makes of Postgres's error that it does not know a time zone a *LimitError of the request that names it.
// Which zones there are, only Postgres knows, and a name with a mistake in it is no outage.
func unknownZone(requests []rate.Request, err error) error {
	const invalidParameterValue = "22023"
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != invalidParameterValue {
		return err
	}
	for _, r := range requests {
		calendar := r.Limit.Calendar
		zone := calendar[strings.LastIndexByte(calendar, ' ')+1:]
		if zone != "" && strings.Contains(strings.ToLower(pg.Message), strings.ToLower(zone)) {
			why := fmt.Sprintf("names the time zone %q, which Postgres does not know: use a name of its view pg_timezone_names, such as Europe/Berlin", zone)
			return fmt.Errorf("%w: %w", &LimitError{Limit: r.Limit, Field: "Calendar", Why: why}, err)
		}
	}
	return err
}

// operation is what a take is called in a RoundTrip.
func operation(requests []rate.Request) string {
	switch r := &requests[0]; {
	case r.Group != 0:
		return "take_groups"
	case r.ID != "":
		return "take_once"
	case r.Block != nil:
		return "take_or_block"
	}
	return "take"
}

// learn lets the memory of denials know what was decided.
func (l *Limiter) learn(requests []rate.Request, decisions []Decision, asked time.Duration) {
	switch r := &requests[0]; {
	case r.Block != nil && !decisions[0].Blocked: // Postgres has to count the denials of a key that is not blocked
	case r.ID != "" && decisions[0].Allowed: // the grant may be an earlier one: how much is left is not known
		l.denials.Forget(r.Bucket())
	default:
		l.denials.Learn(requests, decisions, asked)
	}
}

// lease is the round trip of leases. New has checked that the strategy is a Leaser.
func (l *Limiter) lease(ctx context.Context, request LeaseRequest) (lease Lease, err error) {
	err = l.call(ctx, "lease", 0, func(ctx context.Context) error {
		_, err = l.nodes.at(ctx, request.Key, l.session, func(session Session) error {
			lease, err = l.strategy.(Leaser).Lease(ctx, session, request)
			return err
		})
		if err == nil {
			err = checkLease(l.strategy, &request, &lease)
		}
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return lease, nil
}

// giveBack makes the round trip that returns tokens granted to callers who had left.
func (l *Limiter) giveBack(ctx context.Context, refunds []Refund) error {
	strategy, able := l.strategy.(GiveBacker)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s takes nothing back: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	err := l.call(ctx, "give_back", 0, func(ctx context.Context) (err error) {
		together := max(len(refunds), 1)
		if l.nodes.distributed() {
			together = 1
		}
		for some := range slices.Chunk(refunds, together) {
			_, failed := l.nodes.at(ctx, some[0].Key, l.session, func(session Session) error { return strategy.GiveBack(ctx, session, some) })
			err = errors.Join(err, failed)
		}
		return err
	})
	for i := range refunds { // also after an error: the tokens may have been given back
		l.forget(refunds[i].Bucket())
	}
	return err
}

// call Postgres through the circuit breaker, and tell who observes it. If the call decides requests, they
// are counted; else their number is 0.
func (l *Limiter) call(ctx context.Context, operation string, requests int, strategy func(context.Context) error) error {
	var began time.Time
	err := l.circuit.Call(ctx, func(ctx context.Context) error {
		if l.config.OnRoundTrip != nil || l.observers.all.Load() != nil {
			began = time.Now()
		}
		return l.guard(func() error {
			if requests > 0 {
				l.counters.roundTrips.Add(1)
				l.counters.requests.Add(int64(requests))
			}
			return strategy(ctx)
		})
	})
	if began.IsZero() { // nobody asks, or the breaker is open: Postgres was not asked
		return err
	}
	trip := RoundTrip{
		Limiter: l.config.Name, Strategy: l.strategy.Name(), Operation: operation, Requests: requests,
		Duration: time.Since(began), Outcome: outcome(ctx, err), Err: err,
	}
	if l.config.OnRoundTrip != nil {
		l.config.OnRoundTrip(ctx, trip)
	}
	if all := l.observers.all.Load(); all != nil {
		for _, observe := range *all {
			(*observe)(ctx, trip)
		}
	}
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

// guard turns a panic of the strategy into an error for its callers. Nobody else is affected.
func (l *Limiter) guard(strategy func() error) (err error) {
	if l.session == nil {
		return errors.New("pglimit: On needs a transaction or a connection, and got nil")
	}
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("pglimit: the strategy %s panicked: %v\n%s", l.strategy.Name(), what, debug.Stack())
		}
	}()
	return strategy()
}

// checkDecisions checks that the decisions can answer the requests. The stages rely on it: they
// would hand out tokens that nobody asked for.
func checkDecisions(strategy Strategy, requests []rate.Request, decisions []Decision) error {
	if len(decisions) != len(requests) {
		return fmt.Errorf("pglimit: the strategy %s made %d decisions of %d requests", strategy.Name(), len(decisions), len(requests))
	}
	for i := range decisions {
		r, d := &requests[i], decisions[i]
		if r.Group != 0 {
			if i > 0 && requests[i-1].Group == r.Group && d.Granted > 0 != (decisions[i-1].Granted > 0) {
				return fmt.Errorf("pglimit: the strategy %s granted a part of a group: %+v", strategy.Name(), decisions)
			}
			d.Allowed = d.Granted > 0 // what else it says of a request that is denied
		}
		if fault := fault(&d, r); fault != "" {
			return fmt.Errorf("pglimit: the strategy %s made a decision that cannot be of %d tokens in units of %d, %s: %+v",
				strategy.Name(), r.Tokens, r.Unit, fault, d)
		}
	}
	return nil
}

// checkLease compares what a strategy lends with what it was asked for: Leases spends it without
// asking anybody.
func checkLease(strategy Strategy, r *LeaseRequest, l *Lease) error {
	if l.Tokens < 0 || l.Tokens > min(r.Tokens, r.Limit.Burst) || l.Tokens > 0 && !l.Until.After(l.At) {
		return fmt.Errorf("pglimit: the strategy %s made a lease that cannot be of %d tokens and a burst of %d: %+v", strategy.Name(), r.Tokens, r.Limit.Burst, *l)
	}
	return nil
}

// fault says what is impossible in a decision about the request, or is empty.
func fault(d *Decision, r *rate.Request) string {
	switch {
	case d.Granted < 0:
		return "Granted is negative"
	case d.Granted > r.Tokens:
		return "Granted is more than was asked for"
	case r.Unit > 1 && d.Granted%r.Unit != 0:
		return "Granted is no multiple of the unit"
	case r.Tokens > 0 && d.Allowed != (d.Granted > 0):
		return "Allowed does not fit Granted"
	case d.Delay < 0:
		return "Delay is negative"
	case d.Delay > r.Ahead || d.Delay > 0 && d.Granted == 0:
		return "Delay is not what was asked for"
	case d.Allowed && d.Contended:
		return "Allowed does not fit Contended"
	case d.Blocked != (d.BlockedFor > 0) || d.Allowed && d.Blocked:
		return "Blocked does not fit BlockedFor or Allowed"
	case d.Remaining < 0:
		return "Remaining is negative"
	case d.RetryAfter < 0:
		return "RetryAfter is negative"
	case d.ResetAfter < 0:
		return "ResetAfter is negative"
	}
	return ""
}

// sign asks Postgres for a sign of life.
func (l *Limiter) sign(ctx context.Context) error {
	err := l.guard(func() error { return postgres.Sign(ctx, l.session) })
	if err != nil {
		return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
	}
	return nil
}

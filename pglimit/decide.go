package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// decide is the way of a request: each line is a stage, which answers or passes it on. Where
// none knows the answer, Postgres is asked.
func (l *Limiter) decide(ctx context.Context, r Request) (Decision, error) {
	if err := r.CheckKeyAndTokens(); err != nil {
		return Decision{}, err
	}
	d, spent, left := l.leases.Spend(&r)
	if spent {
		return d, nil
	}
	if !left { // who wants more than is left asks: what is known to be denied knows nothing of it
		if d, denied := l.denials.Recall(&r); denied {
			l.denials.Remembered.Add()
			return d, nil
		}
	}
	d, err := l.ask(ctx, r)
	if err != nil {
		return l.fallback(ctx, r, err)
	}
	return d, nil
}

// ask Postgres, within the time limit.
func (l *Limiter) ask(parent context.Context, r Request) (d Decision, err error) {
	ctx, cancel := l.timed(parent)
	defer cancel()
	if r.Tokens == 0 {
		d, err = l.peek(ctx, r)
	} else {
		d, err = l.obtain(ctx, r)
	}
	// The error itself need not tell: a pool may be set up to cancel a query on the server,
	// which then answers with an error of its own.
	if err != nil && l.timeout != NoTimeout && parent.Err() == nil && errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded) {
		err = &timeoutError{l.timeout, err}
	}
	return d, err
}

// obtain tokens: out of a lease that is fetched for a busy key, or for this request.
func (l *Limiter) obtain(ctx context.Context, r Request) (Decision, error) {
	d, served, release, err := l.leases.Fetch(ctx, &r)
	defer release()
	if err != nil || served {
		return d, err
	}
	return l.take(ctx, r)
}

// peek at the bucket, and at what this process has leased of it.
func (l *Limiter) peek(ctx context.Context, r Request) (Decision, error) {
	addUnspent := l.leases.BeforePeek(r.Key)
	d, err := l.take(ctx, r)
	if err != nil {
		return Decision{}, err
	}
	return addUnspent(r, d), nil
}

// timed is the context with the time limit of a decision.
func (l *Limiter) timed(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.timeout == NoTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.timeout)
}

// take together with others who ask now, or alone.
func (l *Limiter) take(ctx context.Context, r Request) (Decision, error) {
	if l.combiner != nil {
		return l.combiner.Decide(ctx, r)
	}
	defer l.waiting.Leave()
	if err := l.waiting.Enter(); err != nil {
		return Decision{}, err
	}
	if l.closed.Load() {
		return Decision{}, ErrClosed
	}
	decisions, err := l.send(ctx, []Request{r})
	if err != nil {
		return Decision{}, err
	}
	l.counters.alone.Add(1)
	return decisions[0], nil
}

// send is the round trip, whose answers are checked, and remembered where they deny.
func (l *Limiter) send(ctx context.Context, requests []Request) ([]Decision, error) {
	l.counters.roundTrips.Add(1)
	l.counters.requests.Add(int64(len(requests)))
	asked := l.denials.Now()
	decisions, err := l.strategy.Take(ctx, l.session, requests)
	if err == nil {
		err = checkDecisions(l.strategy, requests, decisions)
	}
	if err != nil {
		return nil, err
	}
	l.denials.Learn(requests, decisions, asked)
	return decisions, nil
}

// lease is the round trip of leases. New has seen that the strategy can.
func (l *Limiter) lease(ctx context.Context, request LeaseRequest) (Lease, error) {
	return l.strategy.(Leaser).Lease(ctx, l.session, request)
}

// giveBack is the round trip of what was granted to callers who had left.
func (l *Limiter) giveBack(ctx context.Context, refunds []Refund) error {
	strategy, able := l.strategy.(GiveBacker)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s takes nothing back: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	err := strategy.GiveBack(ctx, l.session, refunds)
	for i := range refunds { // also after an error, which may hide that it was done
		l.denials.Forget(refunds[i].Key)
	}
	return err
}

// fallback is what becomes of a request of which no decision is known, if that is an outage.
// The caller's own cancellation is none: nobody waits for the answer any more.
func (l *Limiter) fallback(ctx context.Context, r Request, err error) (Decision, error) {
	if errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, ErrClosed) {
		return Decision{}, err
	}
	l.failures.hear(ctx, l.config.Name, err)
	if l.config.OnError == nil || errors.Is(err, ErrNotMigrated) || errors.Is(err, ErrPermission) {
		return Decision{}, err
	}
	d, err := l.config.OnError(ctx, r, err)
	if err != nil {
		return Decision{}, err
	}
	return d, nil
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

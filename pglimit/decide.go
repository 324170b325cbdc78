package pglimit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// decide is the way of a request: each line is a stage, which answers or passes it on. Where
// none knows the answer, Postgres is asked.
func (l *Limiter) decide(ctx context.Context, r Request) (d Decision, err error) {
	if err := r.CheckKeyAndTokens(); err != nil {
		return Decision{}, err
	}
	d, known := l.known(&r)
	if !known {
		d, err = l.ask(ctx, r)
	}
	return l.tell(ctx, r, d, err)
}

// known is the decision where this process knows it: there is a lease with enough tokens, or
// it remembers that there are not enough.
func (l *Limiter) known(r *Request) (d Decision, known bool) {
	d, spent, left := l.leases.Spend(r)
	if spent || left { // who wants more than is left asks: what is remembered knows nothing of the lease
		return d, spent
	}
	return l.denials.Recall(r)
}

// tell the caller: the decision, or what becomes of the error.
func (l *Limiter) tell(ctx context.Context, r Request, d Decision, err error) (Decision, error) {
	if err != nil {
		if d, err = l.fallback(ctx, r, err); err != nil {
			return Decision{}, err
		}
	}
	d.Limit = r.Limit
	l.counters.tell(&d)
	return d, nil
}

// ask Postgres, within the time limit.
func (l *Limiter) ask(parent context.Context, r Request) (d Decision, err error) {
	ctx, cancel := l.timed(parent)
	defer cancel()
	switch err = l.circuit.Admit(ctx, l.ping); {
	case err != nil:
	case r.Tokens == 0:
		d, err = l.peek(ctx, r)
	default:
		d, err = l.obtain(ctx, r)
	}
	return d, l.late(parent, ctx, err)
}

// late is the error of a call that the time limit ended. The error itself need not tell: a
// pool may be set up to cancel a query on the server, which then answers with one of its own.
func (l *Limiter) late(parent, ctx context.Context, err error) error {
	if err == nil || l.timeout == NoTimeout || parent.Err() != nil || !errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded) {
		return err
	}
	return &timeoutError{l.timeout, err}
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
	decisions, err := l.together(ctx, []Request{r})
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}

// together sends the requests in a call of their own.
func (l *Limiter) together(ctx context.Context, requests []Request) ([]Decision, error) {
	defer l.waiting.Leave()
	if err := l.waiting.Enter(); err != nil {
		return nil, err
	}
	if l.closed.Load() {
		return nil, ErrClosed
	}
	// First impatiently: only then silence says something of Postgres, and not of a row.
	requests[0].Impatient = l.circuit != nil
	decisions, err := l.send(ctx, requests)
	if requests[0].Impatient && len(requests) == 1 && errors.Is(err, ErrLocked) {
		requests[0].Impatient = false
		return l.send(ctx, requests)
	}
	return decisions, err
}

// send is the round trip, whose answers are checked, and remembered where they deny.
func (l *Limiter) send(ctx context.Context, requests []Request) (decisions []Decision, err error) {
	asked := l.denials.Now()
	err = l.call(ctx, !requests[0].Impatient, func(ctx context.Context) error {
		l.counters.roundTrips.Add(1)
		l.counters.requests.Add(int64(len(requests)))
		decisions, err = l.strategy.Take(ctx, l.session, requests)
		if err == nil {
			err = checkDecisions(l.strategy, requests, decisions)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range decisions {
		decisions[i].Source = FromDatabase
	}
	l.denials.Learn(requests, decisions, asked)
	return decisions, nil
}

// lease is the round trip of leases. New has seen that the strategy can.
func (l *Limiter) lease(ctx context.Context, request LeaseRequest) (lease Lease, err error) {
	err = l.call(ctx, true, func(ctx context.Context) error {
		lease, err = l.strategy.(Leaser).Lease(ctx, l.session, request)
		return err
	})
	return lease, err
}

// giveBack is the round trip of what was granted to callers who had left.
func (l *Limiter) giveBack(ctx context.Context, refunds []Refund) error {
	strategy, able := l.strategy.(GiveBacker)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s takes nothing back: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	err := l.call(ctx, true, func(ctx context.Context) error { return strategy.GiveBack(ctx, l.session, refunds) })
	for i := range refunds { // also after an error, which may hide that it was done
		l.denials.Forget(refunds[i].Key)
	}
	return err
}

// call Postgres through the circuit breaker. mayWait: for a row that somebody holds.
func (l *Limiter) call(ctx context.Context, mayWait bool, strategy func(context.Context) error) error {
	return l.circuit.Call(ctx, mayWait, func(ctx context.Context) error {
		defer l.circuit.Doubt(l.ping)()
		return l.guard(func() error { return strategy(ctx) })
	})
}

// guard against a strategy that panics: it fails its callers, and nobody else.
func (l *Limiter) guard(strategy func() error) (err error) {
	if l.session == nil {
		return errors.New("pglimit: InTx and OnConn need a transaction or a connection, and got nil")
	}
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("pglimit: the strategy %s panicked: %v\n%s", l.strategy.Name(), what, debug.Stack())
		}
	}()
	return strategy()
}

// ping asks Postgres for a sign of life.
func (l *Limiter) ping(ctx context.Context) error {
	if _, err := l.session.Exec(ctx, "select 1"); err != nil {
		return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
	}
	return nil
}

package pglimit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// decide is the way of a request: each line is a stage, which answers it or passes it on. If
// no stage in this process knows the answer, Postgres is asked.
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

// known returns the decision if this process knows it: it has a lease with enough tokens, or
// remembers that the bucket does not have enough.
func (l *Limiter) known(r *Request) (d Decision, known bool) {
	d, spent, left := l.leases.Spend(r)
	if spent || left { // larger than the rest of the lease: skip the memory, which does not know about leases
		return d, spent
	}
	return l.denials.Recall(r)
}

// tell the caller the decision, or what OnError makes of the error.
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
	if err := l.waiting.Enter(1); err != nil {
		return Decision{}, err
	}
	defer l.waiting.Leave(1)
	ctx, cancel := l.timed(parent)
	defer cancel()
	switch err = l.circuit.Admit(ctx); {
	case err != nil:
	case r.Tokens == 0:
		d, err = l.peek(ctx, r)
	default:
		d, err = l.obtain(ctx, r)
	}
	return d, l.late(parent, ctx, err)
}

// late returns err as a timeoutError if the time limit ended the call. err alone may not show
// that: a pool may be set up to cancel a query on the server, and then err is the server's.
func (l *Limiter) late(parent, ctx context.Context, err error) error {
	switch {
	case err == nil, l.timeout == NoTimeout, parent.Err() != nil, CauseOf(err).isSetUp():
		return err
	case errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded):
		return &timeoutError{l.timeout, err}
	}
	return err
}

// obtain takes tokens out of a lease that is fetched for a busy key, or for this request alone.
func (l *Limiter) obtain(ctx context.Context, r Request) (Decision, error) {
	d, served, err := l.leases.Fetch(ctx, &r)
	if err != nil || served {
		return d, err
	}
	return l.take(ctx, r)
}

// peek at the bucket, and add the unspent tokens that this process has leased.
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

// take asks Postgres, combined with the requests of other callers or alone.
func (l *Limiter) take(ctx context.Context, r Request) (Decision, error) {
	if l.combiner != nil {
		return l.combiner.Decide(ctx, r)
	}
	decisions, err := l.send(ctx, []Request{r})
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}

// send makes the round trip that decides. It checks the decisions, and remembers denials.
func (l *Limiter) send(ctx context.Context, requests []Request) (decisions []Decision, err error) {
	asked := l.denials.Now()
	err = l.call(ctx, func(ctx context.Context) error {
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

// lease is the round trip of leases. New has checked that the strategy is a Leaser.
func (l *Limiter) lease(ctx context.Context, request LeaseRequest) (lease Lease, err error) {
	err = l.call(ctx, func(ctx context.Context) error {
		if lease, err = l.strategy.(Leaser).Lease(ctx, l.session, request); err == nil {
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
	err := l.call(ctx, func(ctx context.Context) error { return strategy.GiveBack(ctx, l.session, refunds) })
	for i := range refunds { // also after an error: the tokens may have been given back
		l.denials.Forget(refunds[i].Key)
	}
	return err
}

// call Postgres through the circuit breaker.
func (l *Limiter) call(ctx context.Context, strategy func(context.Context) error) error {
	return l.circuit.Call(ctx, func(ctx context.Context) error {
		return l.guard(func() error { return strategy(ctx) })
	})
}

// guard turns a panic of the strategy into an error for its callers. Nobody else is affected.
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

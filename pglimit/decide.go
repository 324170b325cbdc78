package pglimit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// decide is the way of a request: each line is a stage, which answers it or passes it on. If
// no stage in this process knows the answer, Postgres is asked.
func (l *Limiter) decide(ctx context.Context, r Request) (d Decision, err error) {
	if err := l.complete(&r, l.Limit()); err != nil {
		return Decision{}, err
	}
	d, known := l.known(&r)
	if !known {
		d, err = l.ask(ctx, r)
	}
	err = l.tell(ctx, &r, &d, err)
	return d, err
}

// complete fills in what the request leaves out, and checks it. own is the Limiter's own limit.
func (l *Limiter) complete(r *Request, own Limit) error {
	if r.Limiter == "" {
		r.Limiter = l.config.Name
	} else if err := rate.CheckLimiter(r.Limiter); err != nil {
		return err
	}
	if r.Limit == (Limit{}) {
		r.Limit = own
	} else if err := checkLimit(l.strategy, r.Limit); err != nil {
		return err
	}
	if r.Unit == 0 {
		r.Unit = max(r.Tokens, 1)
	}
	if r.Durability == Relaxed {
		r.Durability = l.config.Durability
	}
	r.Impatient = false // the stages decide that
	if r.ID != "" && r.IDTTL == 0 {
		r.IDTTL = orDefault(l.config.IDTTL, defaultIDTTL)
	}
	if l.blocks() && r.ID == "" {
		r.Block = &l.config.Block
	}
	if err := l.check(r); err != nil {
		return err
	}
	r.Tokens -= r.Tokens % r.Unit // nobody gets a part of a unit: the parts of several requests must not add up to one
	return nil
}

// check the fields of a request that the caller sets.
func (l *Limiter) check(r *Request) error {
	if l.blocks() {
		if err := l.checkAlone(r); err != nil {
			return err
		}
	}
	if err := r.Validate(); err != nil {
		return err
	}
	if !r.Plain() {
		unusual := *r // so that r need not be on the heap
		return l.strategy.Check(&unusual)
	}
	return nil
}

// known returns the decision if this process knows it: it has a lease with enough tokens, or
// remembers that the bucket does not have enough.
func (l *Limiter) known(r *Request) (d Decision, known bool) {
	if r.ID != "" { // it may have been granted before
		return Decision{}, false
	}
	d, spent, left := l.leases.Spend(r)
	if spent || left { // larger than the rest of the lease: skip the memory, which does not know about leases
		return d, spent
	}
	return l.denials.Recall(r)
}

// tell completes and counts the decision that the caller gets: d or, after an error, what OnError
// makes of it. With an error, d is the zero Decision.
func (l *Limiter) tell(ctx context.Context, r *Request, d *Decision, err error) error {
	if err != nil {
		*d, err = l.fallback(ctx, *r, err)
	}
	if err == nil {
		d.Limiter, d.Key = r.Limiter, r.Key
		if r.ID == "" || d.Source == FromFallback || d.Limit == (Limit{}) { // else the ID was granted its tokens under an earlier limit
			d.Limit = r.Limit
		}
		l.counters.tell(d)
		if d.Granted > 0 && l.bounds(r, d) {
			l.counters.grantedTokens.Add(d.Granted)
		}
	}
	if l.config.OnDecision != nil {
		l.config.OnDecision(ctx, *r, *d, err)
	}
	return err
}

// bounds says whether the Limiter's own limit bounds how many such tokens are granted, of each key
// and in any span of time: so an exporter can show that it was kept. The grant of a transaction may
// be rolled back, one with an ID may be told twice, and one ahead of its time belongs to a later span.
func (l *Limiter) bounds(r *Request, d *Decision) bool {
	return l.parent == nil && d.Source != FromFallback && d.Delay == 0 && r.ID == "" && r.Limiter == l.config.Name && r.Limit == l.Limit()
}

// asCaller asks Postgres as one of the callers who wait for it, within the time limit. Each of its
// requests counts as a caller.
func (l *Limiter) asCaller(parent context.Context, requests int, ask func(context.Context) error) error {
	if err := l.waiting.Enter(requests); err != nil {
		return err
	}
	defer l.waiting.Leave(requests)
	ctx, cancel := l.timed(parent)
	defer cancel()
	err := l.circuit.Admit(ctx)
	if err == nil {
		err = ask(ctx)
	}
	return l.late(parent, ctx, err)
}

// ask Postgres about a request.
func (l *Limiter) ask(ctx context.Context, r Request) (d Decision, err error) {
	err = l.asCaller(ctx, 1, func(ctx context.Context) (err error) {
		switch {
		case l.alone(&r):
			d, err = l.sendAlone(ctx, r)
		case r.Tokens == 0:
			d, err = l.peek(ctx, r)
		default:
			d, err = l.obtain(ctx, r)
		}
		return err
	})
	return d, err
}

// late returns err as a timeoutError if the time limit ended the call. err alone may not show
// that: a pool may be set up to cancel a query on the server, and then err is the server's.
func (l *Limiter) late(parent, ctx context.Context, err error) error {
	switch {
	case err == nil, l.timeout == NoTimeout, parent.Err() != nil, CauseOf(err).isSetUp():
		return err
	case errors.Is(errors.Join(err, ctx.Err()), context.DeadlineExceeded):
		return &timeoutError{l.timeout, session.BusyConns(l.session), err}
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
	addUnspent := l.leases.BeforePeek(r.Bucket())
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
	err = l.call(ctx, "take", len(requests), func(ctx context.Context) error {
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
	err = l.call(ctx, "lease", 0, func(ctx context.Context) error {
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
	err := l.call(ctx, "give_back", 0, func(ctx context.Context) error { return strategy.GiveBack(ctx, l.session, refunds) })
	for i := range refunds { // also after an error: the tokens may have been given back
		l.denials.Forget(refunds[i].Bucket())
	}
	return err
}

// call Postgres through the circuit breaker. If it decides requests, they are counted; else their
// number is 0.
func (l *Limiter) call(ctx context.Context, operation string, requests int, strategy func(context.Context) error) error {
	guarded := func(ctx context.Context) error {
		return l.guard(func() error {
			if requests > 0 {
				l.counters.roundTrips.Add(1)
				l.counters.requests.Add(int64(requests))
			}
			return strategy(ctx)
		})
	}
	if l.config.OnRoundTrip != nil {
		return l.observed(ctx, operation, requests, guarded)
	}
	return l.circuit.Call(ctx, guarded)
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

package pglimit

import "context"

// decide answers one request.
type decide func(ctx context.Context, request Request) (Decision, error)

// take answers several requests, in their order, in one call of the strategy.
type take func(ctx context.Context, requests []Request) ([]Decision, error)

// pipeline is the way of a request through its stages, each of which wraps the next
// and has a file of its own; one that is switched off is not there at all. Read from the
// end: that is the order in which a request passes them.
//
//	validation → fallback → lease → memory → timeout → lease → combining → memory → strategy
//
// Memory and leases stand twice: where a request may be answered without asking, and
// where it is learned, or fetched, what the next ones may be answered with.
func (l *Limiter) pipeline() decide {
	c := l.config
	send := take(func(ctx context.Context, requests []Request) ([]Decision, error) {
		return l.strategy.Take(ctx, l.db, requests)
	})
	send = l.withCount(send)
	if l.memory != nil {
		send = l.memory.learning(send)
	}
	next := l.oneByOne(send)
	if !c.NoCombining {
		l.combiner = newCombiner(l, send)
		next = l.combiner.decide
	}
	if l.leases != nil {
		next = l.leases.fetching(next)
	}
	if c.Timeout > 0 {
		next = withTimeout(c.Timeout, next)
	}
	asking := next
	if l.memory != nil {
		next = l.memory.recalling(next)
	}
	if l.leases != nil {
		next = l.leases.spending(next, asking)
	}
	if c.OnError != nil {
		next = withFallback(c.OnError, next)
	}
	return withValidation(next)
}

// withValidation turns away what no bucket could answer, before anything is sent
// and before a fallback could let it pass. What is the same for all requests of a
// Limiter, New has validated.
func withValidation(next decide) decide {
	return func(ctx context.Context, request Request) (Decision, error) {
		if err := request.CheckKeyAndTokens(); err != nil {
			return Decision{}, err
		}
		return next(ctx, request)
	}
}

// oneByOne makes a call of each request.
func (l *Limiter) oneByOne(send take) decide {
	return func(ctx context.Context, request Request) (Decision, error) {
		if l.closed.Load() {
			return Decision{}, ErrClosed
		}
		decisions, err := send(ctx, []Request{request})
		if err != nil {
			return Decision{}, err
		}
		l.counters.decided.Add(1)
		return decisions[0], nil
	}
}

// withCount counts calls, and fails one whose decisions cannot be.
func (l *Limiter) withCount(next take) take {
	return func(ctx context.Context, requests []Request) ([]Decision, error) {
		l.counters.roundTrips.Add(1)
		l.counters.requests.Add(int64(len(requests)))
		decisions, err := next(ctx, requests)
		if err == nil {
			err = checkDecisions(l.strategy, requests, decisions)
		}
		if err != nil {
			return nil, err
		}
		return decisions, nil
	}
}

package pglimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Take decides several requests, of one key or many, each by itself, in their order. Those of
// which this process knows the answer get it; the others travel together.
//
// Of a [Request], Key and Tokens are needed. Unit zero means all or nothing; with a smaller
// one as many whole units are granted as there are. Zero Tokens are a peek. Limiter and Limit
// are the Limiter's own, and may be left out; Durability is the stronger of both.
//
// The error says of which requests no decision is known. The decisions of the others hold, and
// what they granted is taken. After a [*RequestError] nothing is.
func (l *Limiter) Take(ctx context.Context, requests ...Request) ([]Decision, error) {
	asked, err := l.complete(requests)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	decisions, errs := make([]Decision, len(asked)), make([]error, len(asked))
	var unknown []int
	for i := range asked {
		var known bool
		if decisions[i], known = l.known(&asked[i]); !known {
			unknown = append(unknown, i)
		}
	}
	l.askAll(ctx, asked, unknown, decisions, errs)
	for i := range asked {
		if decisions[i], errs[i] = l.tell(ctx, asked[i], decisions[i], errs[i]); errs[i] != nil {
			errs[i] = fmt.Errorf("request %d: %w", i, errs[i])
		}
	}
	return decisions, errors.Join(errs...)
}

// complete the requests with what is the Limiter's.
func (l *Limiter) complete(requests []Request) ([]Request, error) {
	complete := make([]Request, len(requests))
	for i := range requests {
		var err error
		if complete[i], err = l.completeOne(&requests[i]); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return complete, nil
}

func (l *Limiter) completeOne(r *Request) (Request, error) {
	own := l.request(r.Key, r.Tokens, r.Unit)
	if r.Limiter != "" && r.Limiter != own.Limiter {
		return own, &RequestError{Field: "Limiter", Why: fmt.Sprintf("is %q: this Limiter is %q (leave it out, or ask a Limiter of that name)", r.Limiter, own.Limiter)}
	}
	if r.Limit != (Limit{}) && r.Limit != own.Limit {
		return own, &RequestError{Field: "Limit", Why: fmt.Sprintf("is %v: this Limiter's is %v (leave it out, or ask another Limiter)", r.Limit, own.Limit)}
	}
	if own.Unit == 0 {
		own.Unit = max(r.Tokens, 1)
	}
	if r.Durability != Relaxed {
		own.Durability = r.Durability
	}
	err := own.CheckKeyAndTokens()
	return own, err
}

// askAll asks Postgres for those requests that are unknown, within one time limit.
func (l *Limiter) askAll(parent context.Context, requests []Request, unknown []int, decisions []Decision, errs []error) {
	if len(unknown) == 0 {
		return
	}
	ctx, cancel := l.timed(parent)
	defer cancel()
	asks := make([]Request, len(unknown))
	addUnspent := make([]func(Request, Decision) Decision, len(unknown))
	for i, at := range unknown {
		asks[i] = requests[at]
		if asks[i].Tokens == 0 {
			addUnspent[i] = l.leases.BeforePeek(asks[i].Key)
		}
	}
	answers, failures := l.takeAll(ctx, asks)
	for i, at := range unknown {
		decisions[at], errs[at] = answers[i], l.late(parent, ctx, failures[i])
		if add := addUnspent[i]; add != nil && errs[at] == nil {
			decisions[at] = add(asks[i], decisions[at])
		}
	}
}

// takeAll is take of several requests: together with others, or in a call of their own.
func (l *Limiter) takeAll(ctx context.Context, requests []Request) ([]Decision, []error) {
	if err := l.circuit.Admit(ctx, l.ping); err != nil {
		return failAll(requests, err)
	}
	if l.combiner != nil {
		return l.combiner.DecideAll(ctx, requests)
	}
	decisions, err := l.together(ctx, requests)
	if err == nil {
		return decisions, make([]error, len(requests))
	}
	if len(requests) == 1 || !errors.Is(err, ErrNothingTaken) || !l.session.Autocommits() {
		return failAll(requests, err)
	}
	return l.takeEach(ctx, requests)
}

// takeEach asks about each by itself: one of them is to blame that nothing was taken, and the
// others have their decisions. Those whose rows somebody holds come last: to wait for them
// would take the time of the others.
func (l *Limiter) takeEach(ctx context.Context, requests []Request) ([]Decision, []error) {
	defer l.waiting.Leave()
	if err := l.waiting.Enter(); err != nil {
		return failAll(requests, err)
	}
	decisions, errs := make([]Decision, len(requests)), make([]error, len(requests))
	take := func(i int, impatient bool) {
		alone := requests[i : i+1]
		alone[0].Impatient = impatient
		answers, err := l.send(ctx, alone)
		if errs[i] = err; err == nil {
			decisions[i] = answers[0]
		}
	}
	var held []int
	keys := make(map[string]bool)
	for i := range requests {
		if !keys[requests[i].Key] {
			take(i, true)
		}
		if keys[requests[i].Key] || errors.Is(errs[i], ErrLocked) {
			held, keys[requests[i].Key] = append(held, i), true // those of one key stay in order
		}
	}
	for _, i := range held {
		take(i, false)
	}
	return decisions, errs
}

func failAll(requests []Request, err error) ([]Decision, []error) {
	return make([]Decision, len(requests)), slices.Repeat([]error{err}, len(requests))
}

package pglimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Take decides several requests, for one key or many, each by itself. Some can be answered in
// this process; the others are sent together, and decided in their order for each key.
//
// A [Request] needs Key and Tokens. A Unit of zero means all or nothing; with a Unit smaller
// than Tokens, as many whole units are granted as there are. Zero Tokens are a peek. Limiter
// and Limit may be left out, or must be the Limiter's own. Durability is the stronger of the
// request's and the Limiter's.
//
// Each request that is sent counts as a waiting caller: if [Config].MaxWaiting has no room for
// all of them, none is sent. The error says of which requests no decision is known. The other
// decisions hold, and their tokens are taken. After a [*RequestError] nothing is taken.
func (l *Limiter) Take(ctx context.Context, requests ...Request) ([]Decision, error) {
	asked, err := l.complete(requests)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	decisions, errs := make([]Decision, len(asked)), make([]error, len(asked))
	var unknown []int
	after := make(map[string]bool) // keys that have to be asked for: what follows of them is decided behind that
	for i := range asked {
		key, known := asked[i].Key, false
		if !after[key] {
			decisions[i], known = l.known(&asked[i])
		}
		if !known {
			unknown, after[key] = append(unknown, i), true
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

// complete the requests with the Limiter's fields, and check them.
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

// askAll is ask for the requests at the indexes in unknown, within one time limit.
func (l *Limiter) askAll(parent context.Context, requests []Request, unknown []int, decisions []Decision, errs []error) {
	if len(unknown) == 0 {
		return
	}
	if err := l.waiting.Enter(len(unknown)); err != nil {
		for _, at := range unknown {
			errs[at] = err
		}
		return
	}
	defer l.waiting.Leave(len(unknown))
	ctx, cancel := l.timed(parent)
	defer cancel()
	answers, failures := l.obtainAll(ctx, requests, unknown)
	for i, at := range unknown {
		decisions[at], errs[at] = answers[i], l.late(parent, ctx, failures[i])
	}
}

// obtainAll is obtain, or peek, for several requests.
func (l *Limiter) obtainAll(ctx context.Context, requests []Request, unknown []int) ([]Decision, []error) {
	decisions, errs := make([]Decision, len(unknown)), make([]error, len(unknown))
	if err := l.circuit.Admit(ctx); err != nil {
		return decisions, slices.Repeat([]error{err}, len(unknown))
	}
	served := make([]bool, len(unknown))
	if l.leases != nil {
		l.fetchAll(ctx, requests, unknown, decisions, served, errs)
	}
	var asks []Request
	var of []int // for each of asks, its index in unknown
	unspent := make(map[int]func(Request, Decision) Decision)
	for i, at := range unknown {
		r := &requests[at]
		if r.Tokens == 0 {
			unspent[i] = l.leases.BeforePeek(r.Key)
		}
		if !served[i] && errs[i] == nil {
			asks, of = append(asks, *r), append(of, i)
		}
	}
	if len(asks) == 0 {
		return decisions, errs
	}
	answers, failures := l.takeAll(ctx, asks)
	for n, i := range of {
		decisions[i], errs[i] = answers[n], failures[n]
		if add := unspent[i]; add != nil && errs[i] == nil {
			decisions[i] = add(asks[n], decisions[i])
		}
	}
	return decisions, errs
}

// fetchAll fetches leases for the keys that are busy, all at a time. What follows a request that
// has to be sent is sent behind it.
func (l *Limiter) fetchAll(ctx context.Context, requests []Request, unknown []int, decisions []Decision, served []bool, errs []error) {
	var fetches sync.WaitGroup
	for _, ofKey := range byKey(requests, unknown) {
		fetches.Go(func() {
			for _, i := range ofKey {
				r := &requests[unknown[i]]
				if r.Tokens == 0 {
					continue
				}
				if decisions[i], served[i], errs[i] = l.leases.Fetch(ctx, r); !served[i] && errs[i] == nil {
					return
				}
			}
		})
	}
	fetches.Wait()
}

// byKey has the indexes into unknown of each key's requests, in order.
func byKey(requests []Request, unknown []int) map[string][]int {
	keys := make(map[string][]int)
	for i, at := range unknown {
		key := requests[at].Key
		keys[key] = append(keys[key], i)
	}
	return keys
}

// takeAll is take for several requests.
func (l *Limiter) takeAll(ctx context.Context, requests []Request) ([]Decision, []error) {
	if l.combiner != nil {
		return l.combiner.DecideAll(ctx, requests)
	}
	decisions, err := l.send(ctx, requests)
	if err == nil {
		return decisions, make([]error, len(requests))
	}
	if len(requests) == 1 || !errors.Is(err, ErrNothingTaken) || !l.session.Autocommits() {
		return failAll(requests, err)
	}
	return l.takeEach(ctx, requests)
}

// takeEach sends each request by itself after a call that took nothing: the request to blame
// fails, and the others get their decisions. Requests whose rows somebody holds locked come
// last, so that the others do not lose their time to that wait.
func (l *Limiter) takeEach(ctx context.Context, requests []Request) ([]Decision, []error) {
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
			held, keys[requests[i].Key] = append(held, i), true // requests for one key stay in order
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

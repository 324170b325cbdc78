package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Take decides several requests, for one key or many, each by itself. Some can be answered in
// this process; the others are sent together, and decided in their order for each bucket.
//
// A [Request] needs Key and Tokens. A Unit of zero means all or nothing; with a Unit smaller
// than Tokens, as many whole units are granted as there are. Zero Tokens are a peek. With
// Ahead, tokens that are still to come are granted too, and Decision.Delay says when they may be
// used. Durability is the stronger of the request's and the Limiter's.
// Requests with an ID (see [Limiter.AllowOnce]), and with [Config].Block all of them, must be all or
// nothing. Each is a round trip of its own, and the others are decided behind them.
//
// Limiter and Limit are the Limiter's own if they are left out. A Limiter name and a Key name a
// bucket. What was used of it under one limit is used under another, and requests for it under
// different limits go out in different calls. [Limiter.Reset] and [Limiter.ResetAll] are for
// the Limiter's own name: to reset a bucket of another name, make a Limiter of that name.
//
// Each request that is sent counts as a waiting caller: if [Config].MaxWaiting has no room for
// all of them, none is sent. The error says of which requests no decision is known. The other
// decisions hold, and their tokens are taken. If a request is not valid, none is sent, and the
// decisions are nil. So they are if there are no requests.
func (l *Limiter) Take(ctx context.Context, requests ...Request) ([]Decision, error) {
	asked, err := l.completeAll(requests)
	if err != nil || len(asked) == 0 {
		return nil, err
	}
	decisions, errs := make([]Decision, len(asked)), make([]error, len(asked))
	var unknown []int
	after := make(map[rate.Bucket]bool) // buckets that have to be asked for: what follows of them is decided behind that
	for i := range asked {
		bucket, known := asked[i].Bucket(), false
		if !after[bucket] {
			decisions[i], known = l.known(&asked[i])
		}
		if !known {
			unknown, after[bucket] = append(unknown, i), true
		}
	}
	l.askAll(ctx, asked, unknown, decisions, errs)
	for i := range asked {
		if errs[i] = l.tell(ctx, &asked[i], &decisions[i], errs[i]); errs[i] != nil {
			errs[i] = fmt.Errorf("request %d: %w", i, errs[i])
		}
	}
	return decisions, errors.Join(errs...)
}

// completeAll completes copies of the requests, all with the same own limit.
func (l *Limiter) completeAll(requests []Request) ([]Request, error) {
	complete, own := slices.Clone(requests), l.Limit()
	for i := range complete {
		if err := l.complete(&complete[i], own); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return complete, nil
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
	l.sendEachAlone(ctx, requests, unknown, decisions, served, errs)
	if l.leases != nil {
		l.fetchAll(ctx, requests, unknown, decisions, served, errs)
	}
	var asks []Request
	var of []int // for each of asks, its index in unknown
	unspent := make(map[int]func(Request, Decision) Decision)
	for i, at := range unknown {
		r := &requests[at]
		if r.Tokens == 0 && !served[i] {
			unspent[i] = l.leases.BeforePeek(r.Bucket())
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

// fetchAll fetches leases for the buckets that are busy, all at a time. What follows a request that
// has to be sent is sent behind it.
func (l *Limiter) fetchAll(ctx context.Context, requests []Request, unknown []int, decisions []Decision, served []bool, errs []error) {
	var fetches sync.WaitGroup
	for _, ofBucket := range byBucket(requests, unknown, func(r *Request) bool { return r.Tokens > 0 }) {
		fetches.Go(func() {
			for _, i := range ofBucket {
				r := &requests[unknown[i]]
				if served[i] {
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

// byBucket has the indexes into unknown of each bucket's requests that are wanted, in order. The
// buckets are in the order in which rows are locked, because in a transaction they stay locked.
func byBucket(requests []Request, unknown []int, wanted func(*Request) bool) (buckets [][]int) {
	var order []int
	for i, at := range unknown {
		if wanted(&requests[at]) {
			order = append(order, i)
		}
	}
	compare := func(i, j int) int {
		a, b := &requests[unknown[i]], &requests[unknown[j]]
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Limiter, b.Limiter))
	}
	slices.SortStableFunc(order, compare)
	for n, i := range order {
		if n == 0 || compare(order[n-1], i) != 0 {
			buckets = append(buckets, nil)
		}
		last := &buckets[len(buckets)-1]
		*last = append(*last, i)
	}
	return buckets
}

// takeAll is take for several requests.
func (l *Limiter) takeAll(ctx context.Context, requests []Request) ([]Decision, []error) {
	if l.combiner != nil {
		return l.combiner.DecideAll(ctx, requests)
	}
	var decisions []Decision
	var errs []error
	for len(requests) > 0 {
		n := oneLimitEach(requests)
		answers, failures := l.takeTogether(ctx, requests[:n])
		decisions, errs = append(decisions, answers...), append(errs, failures...)
		requests = requests[n:]
	}
	return decisions, errs
}

// oneLimitEach is how many of the requests can go out in one call, which has one limit for each
// bucket.
func oneLimitEach(requests []Request) int {
	limits := make(map[rate.Bucket]Limit)
	for i := range requests {
		bucket := requests[i].Bucket()
		if limit, known := limits[bucket]; known && limit != requests[i].Limit {
			return i
		}
		limits[bucket] = requests[i].Limit
	}
	return len(requests)
}

// takeTogether sends the requests in one call, or each by itself if that call took nothing.
func (l *Limiter) takeTogether(ctx context.Context, requests []Request) ([]Decision, []error) {
	decisions, err := l.send(ctx, requests)
	if err == nil {
		return decisions, make([]error, len(requests))
	}
	if len(requests) == 1 || !errors.Is(err, ErrNothingTaken) || !l.session.Autocommits() {
		return make([]Decision, len(requests)), slices.Repeat([]error{err}, len(requests))
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
	locked := make(map[rate.Bucket]bool)
	for i := range requests {
		bucket := requests[i].Bucket()
		if !locked[bucket] {
			take(i, true)
		}
		if locked[bucket] || errors.Is(errs[i], ErrLocked) {
			held, locked[bucket] = append(held, i), true // requests for one bucket stay in order
		}
	}
	for _, i := range held {
		take(i, false)
	}
	return decisions, errs
}

package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
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
	all, err := l.completeAll(requests)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var unknown []*asked
	after := make(map[rate.Bucket]bool) // buckets that have to be asked for: what follows of them is decided behind that
	for i := range all {
		a := &all[i]
		bucket := a.Bucket()
		if !after[bucket] {
			a.decision, a.served = l.known(&a.Request)
		}
		if !a.served {
			unknown, after[bucket] = append(unknown, a), true
		}
	}
	l.askAll(ctx, unknown)
	decisions, errs := make([]Decision, len(all)), make([]error, len(all))
	for i := range all {
		a := &all[i]
		if err := l.tell(ctx, &a.Request, &a.decision, a.err); err != nil {
			errs[i] = fmt.Errorf("request %d: %w", i, err)
		}
		decisions[i] = a.decision
	}
	return decisions, errors.Join(errs...)
}

// asked is a request of a Take, and its answer.
type asked struct {
	Request
	decision Decision
	err      error
	served   bool // it has its decision or error, and is not sent with the others
}

// completeAll completes copies of the requests, all with the same own limit.
func (l *Limiter) completeAll(requests []Request) ([]asked, error) {
	all, own := make([]asked, len(requests)), l.Limit()
	for i := range all {
		all[i].Request = requests[i]
		if err := l.complete(&all[i].Request, own); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return all, nil
}

// askAll is ask for several requests, within one time limit.
func (l *Limiter) askAll(parent context.Context, asks []*asked) {
	if len(asks) == 0 {
		return
	}
	err := l.asCaller(parent, len(asks), func(ctx context.Context) error {
		l.obtainAll(ctx, asks)
		for _, a := range asks {
			a.err = l.late(parent, ctx, a.err)
		}
		return nil
	})
	if err != nil { // nothing was sent
		for _, a := range asks {
			a.err = err
		}
	}
}

// obtainAll is obtain, or peek, for several requests.
func (l *Limiter) obtainAll(ctx context.Context, asks []*asked) {
	l.sendEachAlone(ctx, asks)
	if l.leases != nil {
		l.fetchAll(ctx, asks)
	}
	var rest []*asked
	unspent := make(map[*asked]func(Request, Decision) Decision)
	for _, a := range asks {
		if a.served || a.err != nil {
			continue
		}
		rest = append(rest, a)
		if a.Tokens == 0 {
			unspent[a] = l.leases.BeforePeek(a.Bucket())
		}
	}
	l.takeAll(ctx, rest)
	for a, add := range unspent {
		if a.err == nil {
			a.decision = add(a.Request, a.decision)
		}
	}
}

// fetchAll fetches leases for the buckets that are busy, all at a time. What follows a request that
// has to be sent is sent behind it.
func (l *Limiter) fetchAll(ctx context.Context, asks []*asked) {
	var fetches sync.WaitGroup
	for _, ofBucket := range byBucket(asks, func(a *asked) bool { return a.Tokens > 0 && !a.served }) {
		fetches.Go(func() {
			for _, a := range ofBucket {
				if a.decision, a.served, a.err = l.leases.Fetch(ctx, &a.Request); !a.served && a.err == nil {
					return
				}
			}
		})
	}
	fetches.Wait()
}

// byBucket has each bucket's requests that are wanted, in order. The buckets are in the order in
// which rows are locked, because in a transaction they stay locked.
func byBucket(asks []*asked, wanted func(*asked) bool) (buckets [][]*asked) {
	asks = slices.DeleteFunc(slices.Clone(asks), func(a *asked) bool { return !wanted(a) })
	compare := func(a, b *asked) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Limiter, b.Limiter))
	}
	slices.SortStableFunc(asks, compare)
	for i, a := range asks {
		if i == 0 || compare(asks[i-1], a) != 0 {
			buckets = append(buckets, nil)
		}
		last := &buckets[len(buckets)-1]
		*last = append(*last, a)
	}
	return buckets
}

// takeAll is take for several requests.
func (l *Limiter) takeAll(ctx context.Context, asks []*asked) {
	if l.combiner != nil {
		decisions, errs := l.combiner.DecideAll(ctx, requestsOf(asks))
		for i, a := range asks {
			a.decision, a.err = decisions[i], errs[i]
		}
		return
	}
	for len(asks) > 0 {
		limits, n := make(map[rate.Bucket]Limit), 0
		for n < len(asks) && flight.Agree(limits, asks[n].Request) {
			n++
		}
		err := l.sendAll(ctx, false, asks[:n]...)
		if n > 1 && errors.Is(err, ErrNothingTaken) && l.session.Autocommits() {
			l.sendEach(ctx, asks[:n])
		}
		asks = asks[n:]
	}
}

func requestsOf(asks []*asked) []Request {
	requests := make([]Request, len(asks))
	for i, a := range asks {
		requests[i] = a.Request
	}
	return requests
}

// sendAll sends the requests in one call. The error is also that of each.
func (l *Limiter) sendAll(ctx context.Context, impatient bool, asks ...*asked) error {
	requests := requestsOf(asks)
	for i := range requests {
		requests[i].Impatient = impatient
	}
	decisions, err := l.send(ctx, requests)
	for i, a := range asks {
		if a.err = err; err == nil {
			a.decision = decisions[i]
		}
	}
	return err
}

// sendEach sends each request by itself after a call that took nothing: the request to blame
// fails, and the others get their decisions. Requests for held rows come last, so that the others
// do not lose their time to that wait.
func (l *Limiter) sendEach(ctx context.Context, asks []*asked) {
	var last []*asked
	held := make(map[rate.Bucket]bool)
	for _, a := range asks {
		bucket := a.Bucket()
		if !held[bucket] && errors.Is(l.sendAll(ctx, true, a), ErrLocked) {
			held[bucket] = true
		}
		if held[bucket] { // requests for one bucket stay in order
			last = append(last, a)
		}
	}
	for _, a := range last {
		_ = l.sendAll(ctx, false, a) // a has the error
	}
}

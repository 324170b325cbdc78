package pglimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// obtain takes for the claims out of leases that are fetched for busy keys, or else sends them.
func (l *Limiter) obtain(ctx context.Context, all []*claim) {
	if l.leases == nil && !slices.ContainsFunc(all, isApart) {
		l.take(ctx, all)
		return
	}
	var mu sync.Mutex
	served := make(map[*claim]bool)
	room := make(chan struct{}, l.config.Combine.Lanes) // for claims apart: as many connections as others use
	l.eachBucket(all, func(ofBucket []*claim) {
		for _, apart := range []bool{true, false} {
			for _, c := range ofBucket {
				if isApart(c) != apart {
					continue
				}
				done := l.fromLease(ctx, c)
				if apart && !done {
					room <- struct{}{}
					_ = l.send(ctx, false, c) // c has the error
					<-room
				} else if !done { // what follows is sent behind it
					return
				}
				mu.Lock()
				served[c] = true
				mu.Unlock()
			}
		}
	})
	var rest []*claim
	addUnspent := make(map[*claim]func(rate.Request, Decision) Decision)
	for _, c := range all {
		if served[c] {
			continue
		}
		rest = append(rest, c)
		if r := &c.Requests[0]; r.Tokens == 0 {
			addUnspent[c] = l.leases.BeforePeek(r.Bucket())
		}
	}
	l.take(ctx, rest)
	for c, add := range addUnspent {
		if c.Err == nil {
			c.Decisions[0] = add(c.Requests[0], c.Decisions[0])
		}
	}
}

// isApart says that the claim is sent by itself: it has an ID, or its denial has to be counted.
func isApart(c *claim) bool { return c.Requests[0].ID != "" || c.Requests[0].Block != nil }

// fromLease answers the claim out of a lease that is fetched for it, if it can. What leases cannot serve
// gives this process's own back first, because it may need their tokens.
func (l *Limiter) fromLease(ctx context.Context, c *claim) (done bool) {
	if r := &c.Requests[0]; !c.IsGroup() && !isApart(c) {
		if r.Tokens > 0 {
			c.Decisions[0], done, c.Err = l.leases.Fetch(ctx, r)
		}
		return done || c.Err != nil
	}
	for i := range c.Requests {
		if err := l.leases.Drop(ctx, c.Requests[i].Bucket()); err != nil {
			c.Fail(err)
			return true
		}
	}
	return false
}

// eachBucket calls do with each bucket's claims, in order; groups are by themselves. Buckets are served at
// the same time; on a connection of the caller's, in the order in which rows are locked, because in a
// transaction they stay locked.
func (l *Limiter) eachBucket(all []*claim, do func(ofBucket []*claim)) {
	if len(all) == 1 {
		do(all)
		return
	}
	compare := func(a, b *claim) int {
		r, other := &a.Requests[0], &b.Requests[0]
		return cmp.Or(cmp.Compare(r.Key, other.Key), cmp.Compare(r.Limiter, other.Limiter))
	}
	inOrder := slices.SortedStableFunc(slices.Values(all), compare)
	var work sync.WaitGroup
	for len(inOrder) > 0 {
		n := 1
		for n < len(inOrder) && compare(inOrder[0], inOrder[n]) == 0 {
			n++
		}
		ofBucket := inOrder[:n]
		inOrder = inOrder[n:]
		if l.parent != nil {
			do(ofBucket)
		} else {
			work.Go(func() { do(ofBucket) })
		}
	}
	work.Wait()
}

// take sends the claims, combined with those of other callers or in calls of their own.
func (l *Limiter) take(ctx context.Context, all []*claim) {
	if len(all) > 0 && l.combiner != nil {
		l.combiner.Decide(ctx, all)
		return
	}
	for len(all) > 0 {
		n := l.agreeing(all)
		err := l.send(ctx, false, all[:n]...)
		if n > 1 && errors.Is(err, ErrNothingTaken) && l.session.Autocommits() {
			l.sendEach(ctx, all[:n])
		}
		all = all[n:]
	}
}

// agreeing is how many of the first claims can be in one call: it has one limit for each bucket, and keys of one shard.
func (l *Limiter) agreeing(all []*claim) int {
	if len(all) == 1 {
		return 1
	}
	shard := 0
	if l.nodes != nil {
		shard = l.nodes.shardOf(all[0].Requests[0].Key)
	}
	limits := make(map[rate.Bucket]Limit)
	for n, c := range all {
		if l.nodes != nil && l.nodes.shardOf(c.Requests[0].Key) != shard {
			return n
		}
		for i := range c.Requests {
			r := &c.Requests[i]
			if limit, known := limits[r.Bucket()]; known && limit != r.Limit {
				return n
			}
			limits[r.Bucket()] = r.Limit
		}
	}
	return len(all)
}

// sendEach sends each claim by itself after a call that took nothing: the one to blame
// fails, and the others get their decisions. Those for held rows come last, so that the others
// do not lose their time to that wait.
func (l *Limiter) sendEach(ctx context.Context, all []*claim) {
	var last []*claim
	held := make(map[rate.Bucket]bool)
	for _, c := range all {
		bucket := c.Requests[0].Bucket()
		if !held[bucket] && errors.Is(l.send(ctx, true, c), ErrLocked) {
			held[bucket] = true
		}
		if held[bucket] { // requests for one bucket stay in order
			last = append(last, c)
		}
	}
	for _, c := range last {
		_ = l.send(ctx, false, c) // c has the error
	}
}

// send makes one call for the claims. The error is also that of each.
func (l *Limiter) send(ctx context.Context, impatient bool, all ...*claim) error {
	requests := all[0].Requests
	if len(all) > 1 || impatient {
		requests = nil
		for _, c := range all {
			requests = append(requests, c.Requests...)
		}
		for i := range requests {
			requests[i].Impatient = impatient
		}
	}
	decisions, err := l.roundTrip(ctx, requests)
	for _, c := range all {
		if c.Err = err; err == nil {
			decisions = decisions[copy(c.Decisions, decisions):]
		}
	}
	return err
}

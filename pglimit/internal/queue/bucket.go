package queue

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// bucket is what the queue knows of a bucket, or of those of equal groups. A place of a caller who gave up is
// lost to all if it is given back while, or after, another one is reserved behind it. So while there
// are vacant places the bucket is closed: new callers take one of them, or wait. When the callers who were
// asking before have their answers, the places that are still vacant are given back, and the bucket opens.
type bucket struct {
	asking    int         // callers who ask Postgres for a place
	closed    bool        // new callers have to wait
	newcomers []*newcomer // those who wait, in order of arrival
	vacant    []*vacancy  // of all lines of the bucket, by due; a newcomer takes none that is overdue: its tokens may be there for others
	refunding bool        // a call under way gives places back
}

// vacancy is the place of a caller who gave up.
type vacancy struct {
	place
	unit unit
	ctx  context.Context // of that caller, without its end
	gone chan struct{}   // closed when somebody has taken it, or it is given back
}

// newcomer is a caller who waits until the bucket opens, or for a vacant place.
type newcomer struct {
	unit   unit
	latest time.Time    // when the tokens must be due
	answer chan *Waiter // has an element if there is a place; it is nil if the caller is to ask Postgres
}

// mayBeOverdue is how late, by the database's clock, the tokens of a caller who left may be used by
// one who asked at about the same time. A call that waited for a row for that long, but no longer,
// is dated by its beginning, too.
const mayBeOverdue = 10 * time.Millisecond

func byDue(a, b *vacancy) int { return a.due.Compare(b.due) }

// Join puts the caller into a line, at a vacant place that is due in time. If there is none, own is
// nil: the caller is to ask Postgres, and then to call Answered. The wait before that is a part of
// the Ahead of the requests.
func (q *Queue) Join(ctx context.Context, requests []rate.Request) (own *Waiter, err error) {
	n := q.admit(requests)
	if n == nil {
		return nil, nil
	}
	select {
	case own = <-n.answer:
	case <-ctx.Done():
		own, err = q.withdraw(n), ctx.Err()
	case <-q.ended.Done():
		own, err = q.withdraw(n), rate.ErrClosed
	}
	if own != nil {
		return own, nil
	}
	left := max(0, time.Until(n.latest)).Truncate(time.Millisecond) // as longestWait of the Limiter does
	for i := range requests {
		requests[i].Ahead = min(requests[i].Ahead, left)
	}
	return nil, err
}

// admit a caller. If the bucket is open, n is nil, and the caller asks Postgres.
func (q *Queue) admit(requests []rate.Request) (n *newcomer) {
	u, longest := unitOf(requests), time.Duration(0)
	for i := range requests {
		longest = max(longest, requests[i].Ahead)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.of(u)
	if !b.closed {
		b.asking++
		return nil
	}
	n = &newcomer{u, time.Now().Add(longest), make(chan *Waiter, 1)}
	if q.occupy(b, n) {
		q.update(u, b)
	} else {
		b.newcomers = append(b.newcomers, n)
	}
	return n
}

// withdraw a caller who waits no longer. own is nil, unless there was a place at the same moment.
func (q *Queue) withdraw(n *newcomer) (own *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.of(n.unit)
	select {
	case own = <-n.answer:
		if own == nil { // it was to ask Postgres
			b.asking--
		}
	default:
		b.newcomers = slices.DeleteFunc(b.newcomers, func(other *newcomer) bool { return other == n })
	}
	q.update(n.unit, b)
	return own
}

// occupy gives the caller the first vacant place that is due in time, and returns whether there is one.
func (q *Queue) occupy(b *bucket, n *newcomer) bool {
	now := time.Now()
	i := slices.IndexFunc(b.vacant, func(v *vacancy) bool {
		return v.unit.line == n.unit.line && v.due.After(now) && !v.due.After(n.latest)
	})
	if i < 0 {
		return false
	}
	v := b.vacant[i]
	b.vacant = slices.Delete(b.vacant, i, i+1)
	close(v.gone)
	q.Stats.PassedOn.Add(v.granted())
	n.answer <- q.add(n.unit, v.place)
	return true
}

// occupyAll gives the vacant places to newcomers, in order of arrival.
func (q *Queue) occupyAll(b *bucket) {
	if len(b.vacant) > 0 {
		b.newcomers = slices.DeleteFunc(b.newcomers, func(n *newcomer) bool { return q.occupy(b, n) })
	}
}

// admitAll newcomers.
func (b *bucket) admitAll() {
	for _, n := range b.newcomers {
		n.answer <- nil
	}
	b.asking, b.newcomers = b.asking+len(b.newcomers), nil
}

func (q *Queue) of(u unit) *bucket {
	b := q.buckets[u.door()]
	if b == nil {
		b = &bucket{}
		q.buckets[u.door()] = b
	}
	return b
}

// Answered says that the caller has asked Postgres. If that has granted the tokens, the caller stands in
// line from now on, at an earlier vacant place if there is one. That may have been due before Postgres
// decided, but not by more than mayBeOverdue.
func (q *Queue) Answered(requests []rate.Request, decisions []rate.Decision) (own *Waiter) {
	u, first := unitOf(requests), &decisions[0]
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.of(u)
	b.asking--
	if first.Granted > 0 && first.Source == rate.FromDatabase {
		p := placeOf(requests, decisions)
		for _, v := range b.vacant {
			overdue := first.At.Sub(v.by())
			if v.unit.line == u.line && v.due.Before(p.due) && overdue <= mayBeOverdue {
				v.place, p = p, v.place
			}
		}
		slices.SortStableFunc(b.vacant, byDue)
		own = q.add(u, p)
	}
	q.update(u, b)
	return own
}

// GiveUp leaves the line, with its last place, and returns when somebody else has that place or it
// is given back, but does not wait for long.
func (q *Queue) GiveUp(ctx context.Context, requests []rate.Request, own *Waiter) {
	u := unitOf(requests)
	q.mu.Lock()
	q.remove(u, own, true)
	if own.decisions[0].Source != rate.FromDatabase { // Postgres has not granted it
		q.mu.Unlock()
		return
	}
	v := &vacancy{place: own.place, unit: u, ctx: context.WithoutCancel(ctx), gone: make(chan struct{})}
	b := q.of(u)
	b.closed = true
	b.vacant = append(b.vacant, v)
	slices.SortStableFunc(b.vacant, byDue)
	q.update(u, b)
	q.mu.Unlock()
	select {
	case <-v.gone:
	case <-time.After(wait.SettleTime): // somebody who is asking has no answer yet: it is given back after that
	}
}

// update opens the bucket, or begins to give vacant places back, if it is time. The queue is locked.
func (q *Queue) update(u unit, b *bucket) {
	q.occupyAll(b)
	switch {
	case b.refunding:
	case len(b.vacant) == 0:
		b.closed = false
		if b.admitAll(); b.asking == 0 {
			delete(q.buckets, u.door())
		}
	case b.asking == 0:
		b.refunding = true
		q.Stay(1)
		go q.refund(u, b, b.vacant)
		b.vacant = nil
	}
}

// refundCall gives places back, of several buckets.
type refundCall struct {
	refunds []rate.Refund
	done    chan struct{}
}

// refund gives vacant places back.
func (q *Queue) refund(u unit, b *bucket, vacant []*vacancy) {
	defer q.Leave(1)
	q.mu.Lock()
	call, first := q.next, q.next == nil
	if first {
		call = &refundCall{done: make(chan struct{})}
		q.next = call
	}
	for _, v := range vacant {
		call.refunds = append(call.refunds, v.refunds()...)
	}
	q.mu.Unlock()
	if first {
		q.send(vacant[0].ctx, call)
	} else {
		<-call.done
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	for _, v := range vacant {
		close(v.gone)
	}
	b.refunding = false
	if q.occupyAll(b); len(b.vacant) > 0 {
		// Others have left meanwhile. Nobody waits for more than one call, even though what is
		// vacant now may be lost by that.
		b.admitAll()
	}
	q.update(u, b)
}

// send makes the call. There is one call at a time, and what is to be given back meanwhile, of other
// buckets, shares the next one.
func (q *Queue) send(ctx context.Context, call *refundCall) {
	q.call <- struct{}{}
	defer func() { <-q.call }()
	q.mu.Lock()
	q.next = nil
	q.mu.Unlock()
	// The last place first: nothing may be reserved behind a place that is given back.
	slices.SortStableFunc(call.refunds, func(a, b rate.Refund) int { return b.At.Add(b.Delay).Compare(a.At.Add(a.Delay)) })
	q.Stats.GiveBack(ctx, call.refunds, q.giveBack)
	close(call.done)
}

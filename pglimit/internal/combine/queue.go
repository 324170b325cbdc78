package combine

import (
	"context"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// waiter is a caller that waits for the answer to a unit. It has copies of the requests and the
// decisions, because the lane may still use them when the caller has left.
type waiter struct {
	wait.Caller[[]rate.Request, []rate.Decision]
	ctx     context.Context
	home    *lane           // of the unit's key, or that of groups
	answers []rate.Decision // room for the answer

	// Guarded by the lane's lock.
	queue          *queue // in which it waits; nil once it is off
	previous, next *waiter
	call           *wait.Call // for which it waits then

	slot int // the index of the request that it became part of; of a group, of its first
}

func (c *Combiner) newWaiter(ctx context.Context, u *claims.Claim) *waiter {
	w, recycled := c.waiters.Get().(*waiter)
	if !recycled {
		w = new(waiter)
	}
	w.ctx, w.home = ctx, c.laneOf(u.Requests)
	w.Begin(append(w.Request[:0], u.Requests...))
	return w
}

// recycle keeps a waiter for later use. No lane may hold it any more.
func (c *Combiner) recycle(w *waiter) {
	clear(w.Request) // or its strings would stay in memory
	clear(w.answers)
	w.ctx, w.home, w.call = nil, nil, nil
	c.waiters.Put(w)
}

// grant answers with the decisions. It returns false if the caller has left.
func (w *waiter) answer(decisions ...rate.Decision) (heard bool) {
	w.answers = append(w.answers[:0], decisions...)
	return w.Answer(w.answers, nil)
}

// tokens that are asked for in all.
func (w *waiter) tokens() (n int64) {
	for i := range w.Request {
		n += w.Request[i].Tokens
	}
	return n
}

// queue of waiters, in order of arrival.
type queue struct{ first, last *waiter }

func (q *queue) push(w *waiter) {
	w.queue, w.previous = q, q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *queue) pushFront(w *waiter) {
	w.queue, w.next = q, q.first
	if q.first == nil {
		q.last = w
	} else {
		q.first.previous = w
	}
	q.first = w
}

func (q *queue) remove(w *waiter) {
	if w.previous == nil {
		q.first = w.next
	} else {
		w.previous.next = w.next
	}
	if w.next == nil {
		q.last = w.previous
	} else {
		w.next.previous = w.previous
	}
	w.previous, w.next, w.queue = nil, nil, nil
}

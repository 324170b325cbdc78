package combine

import (
	"context"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// waiter is a caller that waits for an answer.
type waiter struct {
	wait.Waiter
	ctx context.Context

	// Guarded by the lane's lock.
	queued         bool
	previous, next *waiter        // in the queue
	flight         *flight.Flight // the call that it waits for, once it is off the queue

	slot int // the index of the request that it became part of
}

func (c *Combiner) newWaiter(ctx context.Context, request rate.Request) *waiter {
	w, recycled := c.waiters.Get().(*waiter)
	if !recycled {
		w = new(waiter)
	}
	w.ctx = ctx
	w.Begin(request)
	return w
}

// recycle keeps a waiter for later use. No lane may hold it any more.
func (c *Combiner) recycle(w *waiter) {
	w.ctx, w.Request, w.flight = nil, rate.Request{}, nil
	c.waiters.Put(w)
}

// queue of waiters, in order of arrival.
type queue struct{ first, last *waiter }

func (q *queue) push(w *waiter) {
	w.queued = true
	w.previous = q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *queue) pushFront(w *waiter) {
	w.queued = true
	w.next = q.first
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
	w.previous, w.next, w.queued = nil, nil, false
}

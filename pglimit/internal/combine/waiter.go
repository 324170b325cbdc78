package combine

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// waiter is a caller that waits for an answer.
type waiter struct {
	ctx     context.Context
	request rate.Request

	// The answer: written by the lane before the state is answered, and read by
	// the caller once ready has something in it.
	decision rate.Decision
	err      error
	ready    chan struct{}

	state          atomic.Int32 // queued, sent, then answered or left
	previous, next *waiter      // in the queue
	flight         *flight      // once sent: the call that it waits for
	slot           int          // the request of that call that it is part of
}

const (
	queued int32 = iota
	sent
	answered
	left // the caller is gone, and what was granted for it is to be passed on
)

func (c *Combiner) newWaiter(ctx context.Context, request rate.Request) *waiter {
	w, recycled := c.waiters.Get().(*waiter)
	if !recycled {
		w = &waiter{ready: make(chan struct{}, 1)}
	}
	w.ctx, w.request = ctx, request
	w.state.Store(queued)
	return w
}

// recycle a waiter that no lane knows any more.
func (c *Combiner) recycle(w *waiter) {
	w.ctx, w.request, w.decision, w.err, w.flight = nil, rate.Request{}, rate.Decision{}, nil, nil
	c.waiters.Put(w)
}

// answer tells the caller, unless it has left.
func (w *waiter) answer(decision rate.Decision, err error) (heard bool) {
	w.decision, w.err = decision, err
	if !w.state.CompareAndSwap(sent, answered) {
		return false
	}
	w.ready <- struct{}{} // it has room for one
	return true
}

// queue of waiters, in order of arrival.
type queue struct{ first, last *waiter }

func (q *queue) push(w *waiter) {
	w.previous = q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *queue) pushFront(w *waiter) {
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
	w.previous, w.next = nil, nil
}

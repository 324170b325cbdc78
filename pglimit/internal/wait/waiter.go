package wait

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Waiter is a caller that waits for an answer, which somebody else gives; or leaves.
type Waiter struct {
	Request rate.Request

	// The answer: written by the one who gives it before the state is answered, and read by
	// the caller once ready has something in it.
	decision rate.Decision
	err      error
	ready    chan struct{}

	state atomic.Int32
}

const (
	waiting int32 = iota
	answered
	left // the caller is gone
)

// Begin to wait. A Waiter can be used again, once nobody knows it any more.
func (w *Waiter) Begin(request rate.Request) {
	if w.ready == nil {
		w.ready = make(chan struct{}, 1)
	}
	w.Request, w.decision, w.err = request, rate.Decision{}, nil
	w.state.Store(waiting)
}

// Answer tells the caller, unless it has left.
func (w *Waiter) Answer(decision rate.Decision, err error) (heard bool) {
	w.decision, w.err = decision, err
	if !w.state.CompareAndSwap(waiting, answered) {
		return false
	}
	w.ready <- struct{}{} // it has room for one
	return true
}

// Leave says whether the caller may go. If not, it has an answer.
func (w *Waiter) Leave() bool { return w.state.CompareAndSwap(waiting, left) }

// Left says whether the caller is gone.
func (w *Waiter) Left() bool { return w.state.Load() == left }

// Await the answer. When ctx ends, the caller leaves, if leave says that it may: it calls
// Leave. Then the error is that of ctx.
func (w *Waiter) Await(ctx context.Context, leave func() bool) (rate.Decision, error) {
	if done := ctx.Done(); done == nil {
		<-w.ready
	} else {
		select {
		case <-w.ready:
		case <-done:
			if leave() {
				return rate.Decision{}, ctx.Err()
			}
			<-w.ready // the answer was sooner
		}
	}
	return w.decision, w.err
}

package wait

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Waiter is the caller of one request.
type Waiter = Of[rate.Request, rate.Decision]

// Of is a caller with a question, who waits until another goroutine answers, or leaves before.
type Of[Q, A any] struct {
	Request Q

	// The answer. It is written before the state becomes answered, and the caller reads it
	// after it has received from ready.
	decision A
	err      error
	ready    chan struct{}

	state atomic.Int32
}

const (
	waiting int32 = iota
	answered
	left // the caller is gone
)

// Begin prepares the Waiter for a request. It can be used again when no other goroutine holds it.
func (w *Of[Q, A]) Begin(request Q) {
	if w.ready == nil {
		w.ready = make(chan struct{}, 1)
	}
	w.Request, w.decision, w.err = request, *new(A), nil
	w.state.Store(waiting)
}

// Answer gives the caller the answer. It returns false if the caller has left.
func (w *Of[Q, A]) Answer(decision A, err error) (heard bool) {
	w.decision, w.err = decision, err
	if !w.state.CompareAndSwap(waiting, answered) {
		return false
	}
	w.ready <- struct{}{} // it has room for one
	return true
}

// Leave returns true if the caller may go, false if it has been answered.
func (w *Of[Q, A]) Leave() bool { return w.state.CompareAndSwap(waiting, left) }

// Left says whether the caller is gone.
func (w *Of[Q, A]) Left() bool { return w.state.Load() == left }

// Await returns the answer. When ctx ends, it calls leave, which has to call Leave and return
// its result. If that is true, the error is that of ctx.
func (w *Of[Q, A]) Await(ctx context.Context, leave func() bool) (A, error) {
	if done := ctx.Done(); done == nil {
		<-w.ready
	} else {
		select {
		case <-w.ready:
		case <-done:
			if leave() {
				return *new(A), ctx.Err()
			}
			<-w.ready // the answer came first
		}
	}
	return w.decision, w.err
}

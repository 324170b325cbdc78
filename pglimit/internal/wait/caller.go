package wait

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Waiter is the caller of one request.
type Waiter = Caller[rate.Request, rate.Decision]

// Caller asks a question, and waits until another goroutine answers, or leaves before.
type Caller[Q, A any] struct {
	Request Q

	// The answer. It is written before the state becomes answered, and the caller reads it
	// after it has received from ready.
	answer A
	err    error
	ready  chan struct{}

	state atomic.Int32
}

const (
	waiting int32 = iota
	answered
	left // the caller is gone
)

// Begin prepares the Caller for a request. It can be used again when no other goroutine holds it.
func (c *Caller[Q, A]) Begin(request Q) {
	if c.ready == nil {
		c.ready = make(chan struct{}, 1)
	}
	c.Request, c.answer, c.err = request, *new(A), nil
	c.state.Store(waiting)
}

// Answer gives the caller the answer. It returns false if the caller has left.
func (c *Caller[Q, A]) Answer(answer A, err error) (heard bool) {
	c.answer, c.err = answer, err
	if !c.state.CompareAndSwap(waiting, answered) {
		return false
	}
	c.ready <- struct{}{} // it has room for one
	return true
}

// Leave returns true if the caller may go, false if it has been answered.
func (c *Caller[Q, A]) Leave() bool { return c.state.CompareAndSwap(waiting, left) }

// Left says whether the caller is gone.
func (c *Caller[Q, A]) Left() bool { return c.state.Load() == left }

// Await returns the answer. When ctx ends, it calls leave, which has to call Leave and return
// its result. If that is true, the error is that of ctx.
func (c *Caller[Q, A]) Await(ctx context.Context, leave func() bool) (A, error) {
	if done := ctx.Done(); done == nil {
		<-c.ready
	} else {
		select {
		case <-c.ready:
		case <-done:
			if leave() {
				return *new(A), ctx.Err()
			}
			<-c.ready // the answer came first
		}
	}
	return c.answer, c.err
}

// Package wait is how callers wait for an answer: for a place, for somebody to give it, and
// for the end.
package wait

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Crowd is the callers who wait for an answer, in whatever stage. Their number is bounded,
// so that where more come than can be served, memory does not grow without end.
type Crowd struct {
	max   int64
	size  atomic.Int64  // and closed, when it is
	left  sync.Once     // by the last, after Close
	empty chan struct{} // closed then
}

// closed is added to the size: more than any size, and twice of it still a number.
const closed = 1 << 61

// NewCrowd of so many at most.
func NewCrowd(most int) *Crowd { return &Crowd{max: int64(most), empty: make(chan struct{})} }

// Enter with so many requests. Leave with them in any case, unless there is an error:
// ErrOverloaded or, after Close, ErrClosed.
func (c *Crowd) Enter(requests int) error {
	size := c.size.Add(int64(requests))
	switch {
	case size >= closed:
		c.Leave(requests)
		return rate.ErrClosed
	case size > c.max:
		c.Leave(requests)
		return rate.ErrOverloaded
	}
	return nil
}

// Leave with so many requests.
func (c *Crowd) Leave(requests int) {
	if c.size.Add(-int64(requests)) == closed {
		c.left.Do(func() { close(c.empty) })
	}
}

// Size is how many have entered and not left.
func (c *Crowd) Size() int64 {
	if size := c.size.Load(); size < closed {
		return size
	}
	return c.size.Load() - closed
}

// Close lets nobody enter any more, and waits until everybody has left. The error is that
// of ctx.
func (c *Crowd) Close(ctx context.Context) error {
	for {
		size := c.size.Load()
		if size >= closed { // before
			break
		}
		if c.size.CompareAndSwap(size, size+closed) {
			c.Leave(0) // who may have been the last already
			break
		}
	}
	select {
	case <-c.empty:
		return nil
	default:
	}
	select {
	case <-c.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

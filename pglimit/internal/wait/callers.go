// Package wait lets callers wait for an answer, bounds how many wait, and waits for the last.
package wait

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Callers is the callers that wait for an answer, in any stage. Their number is bounded, so that
// memory does not grow without end when more callers come than can be served.
type Callers struct {
	max   int64
	size  atomic.Int64  // plus closed, after Close
	shut  sync.Once     // adds closed
	left  sync.Once     // closes empty
	empty chan struct{} // closed when the last leaves after Close
}

// closed is added to the size by Close. It is more than any size, and twice as much still fits.
const closed = 1 << 61

// NewCallers makes a Callers of that many callers at most.
func NewCallers(most int) *Callers { return &Callers{max: int64(most), empty: make(chan struct{})} }

// Enter with that many requests, and Leave with them later, unless there is an error:
// ErrOverloaded or, after Close, ErrClosed.
func (c *Callers) Enter(requests int) error {
	for {
		size := c.size.Load()
		switch {
		case size >= closed:
			return rate.ErrClosed
		case size+int64(requests) > c.max:
			return rate.ErrOverloaded
		case c.size.CompareAndSwap(size, size+int64(requests)):
			return nil
		}
	}
}

// Stay is Enter for somebody who is in it already, and brings others along, also after Close.
func (c *Callers) Stay(requests int) { c.size.Add(int64(requests)) }

// Closed says whether Close was called.
func (c *Callers) Closed() bool { return c.size.Load() >= closed }

// Leave removes that many requests.
func (c *Callers) Leave(requests int) {
	if c.size.Add(-int64(requests)) == closed {
		c.left.Do(func() { close(c.empty) })
	}
}

// Size is how many requests have entered and not left.
func (c *Callers) Size() int64 { return c.size.Load() % closed }

// Close lets nobody enter any more, and waits until everybody has left. The error is that
// of ctx.
func (c *Callers) Close(ctx context.Context) error {
	c.shut.Do(func() { c.size.Add(closed) })
	c.Leave(0) // closes empty if nobody is in it
	select {
	case <-c.empty:
	case <-ctx.Done():
		if c.Size() > 0 { // select chooses at random when both are ready
			return ctx.Err()
		}
	}
	return nil
}

package pglimit

import "sync/atomic"

const defaultMaxWaiting = 1 << 16

// crowd is the callers who wait for an answer, in whatever stage. Their number is bounded,
// so that where more come than can be served, memory does not grow without end.
type crowd struct {
	max  int64
	size atomic.Int64
}

// enter may fail with ErrOverloaded. It is followed by leave in any case.
func (c *crowd) enter() error {
	if c.size.Add(1) > c.max {
		return ErrOverloaded
	}
	return nil
}

func (c *crowd) leave() { c.size.Add(-1) }

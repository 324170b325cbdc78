// Package count has what is counted while callers come and go: who waits, and how often
// what happened.
package count

import (
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Crowd is the callers who wait for an answer, in whatever stage. Their number is bounded,
// so that where more come than can be served, memory does not grow without end.
type Crowd struct {
	Max  int64
	size atomic.Int64
}

// Enter may fail with rate.ErrOverloaded. It is followed by Leave in any case.
func (c *Crowd) Enter() error {
	if c.size.Add(1) > c.Max {
		return rate.ErrOverloaded
	}
	return nil
}

// Leave the crowd.
func (c *Crowd) Leave() { c.size.Add(-1) }

// Size is how many have entered and not left.
func (c *Crowd) Size() int64 { return c.size.Load() }

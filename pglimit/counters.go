package pglimit

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// counters count the answers to callers, and round trips. The stages count the rest.
type counters struct {
	allowed, denied      [len(rate.Sources)]busyCounter
	contended, blocked   atomic.Int64
	canceled             atomic.Int64
	failed               [len(causes)]atomic.Int64
	roundTrips, requests atomic.Int64
	straightTrips        atomic.Int64
	grantedTokens        busyCounter
	refundedTokens       atomic.Int64
	ruled                [len(rate.Actions)]busyCounter
	observedDenied       atomic.Int64
}

// tell counts a decision that a caller gets.
func (c *counters) tell(d *Decision) {
	if d.Allowed {
		c.allowed[d.Source].Add(1)
	} else {
		c.denied[d.Source].Add(1)
	}
	if d.Contended {
		c.contended.Add(1)
	}
	if d.Blocked {
		c.blocked.Add(1)
	}
}

// busyCounter counts what happens millions of times a second on all cores. At a single memory
// cell the cores would wait for one another.
type busyCounter [16]struct {
	atomic.Int64
	_ [56]byte // a cache line each
}

// Add adds n.
func (c *busyCounter) Add(n int64) { c[rand.Uint32()%uint32(len(c))].Add(n) }

// Load is how many were added.
func (c *busyCounter) Load() (total int64) {
	for i := range c {
		total += c[i].Load()
	}
	return total
}

// observed counts a decision under a rule that is only observed.
func (c *counters) observed(allowed bool) {
	c.ruled[ActionObserve].Add(1)
	if !allowed {
		c.observedDenied.Add(1)
	}
}

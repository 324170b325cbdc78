package bench

import (
	"context"
	"time"
)

// backOff is how long a caller of a closed loop waits when there is no connection.
// Refusals are fast: callers that asked on would do nothing but count them, and keep
// the machine from bringing the server back.
const backOff = 100 * time.Millisecond

// closed runs a closed loop: every caller asks, waits for the answer, and asks again.
// It shows how much the server can do; a server that stalls is asked less meanwhile,
// so for how a stall looks from outside, see [load.open].
func (l *load) closed(ctx context.Context, length time.Duration) time.Duration {
	return l.run(ctx, length, func(ctx context.Context, c *caller, w window) {
		// One reading of the clock per decision: an answer's end is the next
		// request's beginning.
		for from := l.clock.now(); from < w.until && ctx.Err() == nil; {
			answered, connected := c.ask(ctx, l.clock, from, w)
			if !connected {
				pause(ctx, backOff)
				answered = l.clock.now()
			}
			from = answered
		}
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

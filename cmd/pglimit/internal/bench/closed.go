package bench

import (
	"context"
	"time"
)

// closed runs a closed loop: every caller asks, waits for the answer, and asks again.
// It shows how much the server can do; a server that stalls is asked less meanwhile,
// so for how a stall looks from outside, see [load.open].
func (l *load) closed(ctx context.Context, length time.Duration) time.Duration {
	return l.run(ctx, length, func(ctx context.Context, c *caller, w window) {
		// One reading of the clock per decision: an answer's end is the next
		// request's beginning.
		from, goOn := l.clock.now(), true
		for goOn && from < w.until {
			from, goOn = c.ask(ctx, l.clock, from, w)
		}
	})
}

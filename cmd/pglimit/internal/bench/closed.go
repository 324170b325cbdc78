package bench

import (
	"context"
	"runtime"
	"time"
)

// backOff is how long a caller of a closed loop waits when there is no connection. Refusals are fast: without a pause
// callers would only collect refusals, and keep the machine from bringing the server back.
const backOff = 100 * time.Millisecond

// turnTime is how long a caller keeps its core. A caller that is answered from memory never waits, and would keep the
// core until Go takes it away after 10 ms. With 64 callers on two cores, each would run again after a third of a
// second, and so would the goroutines that work for waiting callers. Measured with one key: the longest wait fell from
// 1.1 s to 4 ms, with the same number of decisions per second.
const turnTime = 100 * time.Microsecond

// closed runs a closed loop: every caller asks, waits for the answer, and asks again. It
// shows how much the server can do. A server that stalls is asked less meanwhile;
// [load.open] shows how a stall looks from outside.
func (l *load) closed(ctx context.Context, length time.Duration) time.Duration {
	return l.run(ctx, length, func(ctx context.Context, c *caller, w window) {
		// One reading of the clock per decision: an answer's end is the next
		// request's beginning.
		from := l.clock.now()
		for turn := from + turnTime; from < w.until && ctx.Err() == nil; {
			answered, connected := c.ask(ctx, l.clock, from, w)
			switch {
			case !connected:
				pause(ctx, backOff)
				answered = l.clock.now()
			case answered-from > turnTime/10: // it waited, and has a new turn
				turn = answered + turnTime
			case answered > turn:
				runtime.Gosched()
				answered = l.clock.now()
				turn = answered + turnTime
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

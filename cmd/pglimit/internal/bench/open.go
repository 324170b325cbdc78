package bench

import (
	"context"
	"time"
)

// open runs an open loop: requests arrive when the schedule says, and each goes to the
// next caller that is free. While all callers are busy, arrivals wait for their turn, in
// the schedule and not in memory. Their latency counts from the time at which they were
// due, so a server that stalls for a second shows as a second in the latencies of all
// that arrived meanwhile, not as one slow request.
//
// gap returns the time between one arrival and the next. Arrivals that were not sent by
// the end of the drain are recorded as unserved in the recorder left, with the time that
// they had waited. An interrupted run records none: the server did not leave them
// waiting.
func (l *load) open(ctx context.Context, length time.Duration, gap func() time.Duration, left *recorder) time.Duration {
	arrivals := make(chan time.Duration)
	return l.run(ctx, length,
		func(ctx context.Context, c *caller, w window) {
			for due := range arrivals {
				c.ask(ctx, l.clock, due, w)
				if ctx.Err() != nil {
					return
				}
			}
		},
		func(ctx context.Context, w window) {
			defer close(arrivals)
			l.dispatch(ctx, w, gap, arrivals, left)
		})
}

// dispatch sends each arrival when it is due, or as soon after as a caller is free.
func (l *load) dispatch(ctx context.Context, w window, gap func() time.Duration, arrivals chan<- time.Duration, left *recorder) {
	defer sleepPrecisely()()
	due := w.from + gap()
	for ; due < w.until; due += gap() {
		if !l.sleepUntil(ctx, due) {
			break
		}
		select {
		case arrivals <- due:
			continue
		case <-ctx.Done():
		}
		break
	}
	now := l.clock.now()
	if interrupted(ctx) && now < w.until {
		return
	}
	for ; due < min(now, w.until); due += gap() {
		left.unserved(now - due)
	}
}

// sleepUntil waits until it is time, and returns false if the context ended first.
func (l *load) sleepUntil(ctx context.Context, due time.Duration) bool {
	// Go's timers may be a millisecond late: l.sleep does the last stretch.
	const stretch = 2 * time.Millisecond
	if wait := due - l.clock.now() - stretch; wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	for wait := due - l.clock.now(); wait > 0; wait = due - l.clock.now() {
		l.sleep(wait)
	}
	return ctx.Err() == nil
}

// newGaps returns a function that returns the time from one arrival to the next.
func (c Config) newGaps() func() time.Duration {
	mean := float64(time.Second) / c.RPS
	if c.Arrivals == Constant {
		// Carrying fractions of a nanosecond over keeps the rate exact.
		var exact float64
		var given time.Duration
		return func() time.Duration {
			exact += mean
			gap := time.Duration(exact) - given
			given += gap
			return gap
		}
	}
	random := c.random(streamArrivals, 0)
	return func() time.Duration { return time.Duration(random.ExpFloat64() * mean) }
}

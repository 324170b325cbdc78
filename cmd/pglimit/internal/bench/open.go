package bench

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/wire"
)

// open runs an open loop: requests arrive when the schedule of their instance says, and
// each goes to the next caller of that instance that is free. While all callers are busy,
// arrivals wait for their turn, in the schedule and not in memory. Their latency counts
// from the time at which they were due, so a server that stalls for a second shows as a
// second in the latencies of all that arrived meanwhile, not as one slow request.
//
// There is a schedule for each instance. Arrivals that were not sent by the end of the
// drain are recorded as unserved in the recorder left, one for each instance, with the
// time that they had waited. An interrupted run records none: the server did not leave
// them waiting.
func (l *load) open(ctx context.Context, length time.Duration, schedules []*schedule, left []*recorder) time.Duration {
	arrivals := make([]chan time.Duration, len(schedules))
	dispatchers := make([]func(context.Context, window), len(schedules))
	for i, schedule := range schedules {
		arrivals[i] = make(chan time.Duration)
		dispatchers[i] = func(ctx context.Context, w window) {
			defer close(arrivals[i])
			left[i].begin(w)
			l.dispatch(ctx, w, schedule, arrivals[i], left[i])
		}
	}
	return l.run(ctx, length,
		func(ctx context.Context, c *caller, w window) {
			for due := range arrivals[c.instance] {
				c.ask(ctx, l.clock, due, w)
				if ctx.Err() != nil {
					return
				}
			}
		},
		dispatchers...)
}

// dispatch sends each arrival when it is due, or as soon after as a caller is free.
func (l *load) dispatch(ctx context.Context, w window, schedule *schedule, arrivals chan<- time.Duration, left *recorder) {
	defer wire.SleepPrecisely()()
	over := time.After(w.until + drainTime - l.clock.now())
	since, ok := schedule.arrival()
	for ; ok && w.from+since < w.until; since, ok = schedule.arrival() {
		due := w.from + since
		if !l.sleepUntil(ctx, due) {
			break
		}
		select {
		case arrivals <- due:
			continue
		case <-over:
		case <-ctx.Done():
		}
		break
	}
	now := l.clock.now()
	if interrupted(ctx) && now < w.until {
		return
	}
	for ; ok && w.from+since < w.until; since, ok = schedule.arrival() {
		left.unserved(now-w.from-since, w.from+since)
	}
}

// sleepUntil waits until it is time, and returns false if the context ended first.
func (l *load) sleepUntil(ctx context.Context, due time.Duration) bool {
	// Go's timers may be a millisecond late: l.sleep does the last stretch.
	const stretch = 2 * time.Millisecond
	if wait := due - l.clock.now() - stretch; wait > 0 {
		pause(ctx, wait)
	}
	for wait := due - l.clock.now(); wait > 0 && ctx.Err() == nil; wait = due - l.clock.now() {
		l.sleep(wait)
	}
	return ctx.Err() == nil
}

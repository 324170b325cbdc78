package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// Work that continues after the end of a run is given up after these times, and the report shows it.
const (
	drainTime  = 5 * time.Second // arrivals that wait for a caller are still sent
	answerTime = time.Minute     // requests that are under way are still answered: only a server that hangs takes longer
)

// clock counts from its base: cheaper to read than the time of day, and steady.
type clock struct{ base time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() time.Duration { return time.Since(c.base) }

// load is a number of callers that ask at once.
type load struct {
	callers []*caller
	clock   clock
	sleep   func(time.Duration) // for the last stretch before an arrival: wire.Nanosleep
}

// caller has at most one request under way.
type caller struct {
	instance int
	limiter  *pglimit.Limiter
	keys     []string
	costs    []scenario.Cost
	picker   picker
	recorder *recorder

	_ [64]byte // keeps what a caller changes with each decision out of the others' cache lines
}

// window is the time in which a load runs.
type window struct{ from, until time.Duration }

// run calls work for every caller, each in a goroutine of its own, and returns how long
// the load ran: length, unless ctx ended it sooner. work and beside must return when the
// window is over or the context is done.
func (l *load) run(ctx context.Context, length time.Duration, work func(context.Context, *caller, window), beside ...func(context.Context, window)) time.Duration {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	late := time.AfterFunc(length+answerTime, func() { giveUp(errUnanswered) })
	defer late.Stop()
	w := window{from: l.clock.now()}
	w.until = w.from + length
	for _, c := range l.callers {
		c.recorder.begin(w)
	}

	var running sync.WaitGroup
	for _, c := range l.callers {
		running.Go(func() {
			// A context of the caller's own, so that watching it for the end of a
			// request does not go through one lock for all of them.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			work(ctx, c, w)
		})
	}
	for _, f := range beside {
		running.Go(func() { f(ctx, w) })
	}
	running.Wait()
	if ctx.Err() != nil {
		return min(l.clock.now(), w.until) - w.from
	}
	return length
}

// interrupted says whether ctx ended because the user wanted it, not because requests got no answer.
func interrupted(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errUnanswered)
}

// ask sends a request. Its latency counts from the time given, which is before now if the
// request had to wait for its turn. ask returns when the answer came, and whether there
// was a connection.
func (c *caller) ask(ctx context.Context, clock clock, from time.Duration, w window) (answered time.Duration, connected bool) {
	key, cost := c.picker.pick(), c.picker.pickCost()
	decision, err := c.limiter.AllowN(ctx, c.keys[key], c.costs[cost].Tokens)
	answered = clock.now()
	switch {
	case err == nil:
		c.recorder.decision(key, cost, &decision, answered-from, answered, answered <= w.until)
	case interrupted(ctx):
		// This is not the strategy's fault, but the request may have been granted.
		c.recorder.history.lose(key)
	default:
		c.recorder.failure(key, err, answered-from, answered)
		return answered, !unreachable(err)
	}
	return answered, true
}

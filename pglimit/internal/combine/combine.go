// Package combine sends requests that arrive during a call together in the next one.
package combine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxBatch bounds how many callers one call answers, and so how long the next callers have to wait.
const maxBatch = 1024

// Calls are what a Combiner calls.
type Calls struct {
	// Send asks the strategy.
	Send func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error)

	// GiveBack returns tokens to their buckets.
	GiveBack func(ctx context.Context, refunds []rate.Refund) error

	// Rule is the strategy's: it divides a decision among callers.
	Rule rate.Rule

	// Recall answers a request that is known to be denied. Learned counts how often
	// something new was learned for it.
	Learned func() uint64
	Recall  func(request *rate.Request) (rate.Decision, bool)
}

// Combiner sends requests together that arrive while a call is under way.
//
// Keys are spread over a few lanes. A lane has one call under way at most: a request
// that finds its lane idle goes out at once. Later requests form a queue, which is the
// next call when this one returns. So no request waits for a timer, callers are served
// in order of arrival, and a process never contends with itself for a row. The busier it
// gets, the larger the batches: their callers share the cost of a round trip, and with
// Durable of a flush to disk.
type Combiner struct {
	flight.Stage

	calls   Calls
	seed    maphash.Seed
	lanes   []lane
	waiters sync.Pool // of *waiter that are not in use
}

// New is a Combiner with that many lanes.
func New(lanes int, calls Calls) *Combiner {
	c := &Combiner{calls: calls, seed: maphash.MakeSeed(), lanes: make([]lane, lanes)}
	c.Begin()
	for i := range c.lanes {
		c.lanes[i].combiner, c.lanes[i].mu = c, new(sync.Mutex)
	}
	return c
}

// Decide waits for the answer in the caller's goroutine. The call is made in the lane's
// goroutine, so that a caller whose context ends can leave while the call goes on.
func (c *Combiner) Decide(ctx context.Context, request rate.Request) (rate.Decision, error) {
	if err := ctx.Err(); err != nil {
		return rate.Decision{}, err
	}
	w, l := c.newWaiter(ctx, request), c.laneOf(request.Key)
	if err := l.join(w); err != nil {
		c.recycle(w)
		return rate.Decision{}, err
	}
	return c.await(ctx, l, w)
}

// DecideAll is Decide for several requests, which join the queues of their lanes together.
// Each has a decision or an error.
func (c *Combiner) DecideAll(ctx context.Context, requests []rate.Request) ([]rate.Decision, []error) {
	decisions, errs := make([]rate.Decision, len(requests)), make([]error, len(requests))
	if err := ctx.Err(); err != nil {
		return decisions, slices.Repeat([]error{err}, len(requests))
	}
	waiters := make(map[*lane][]*waiter, len(c.lanes))
	for _, r := range requests {
		l := c.laneOf(r.Key)
		waiters[l] = append(waiters[l], c.newWaiter(ctx, r))
	}
	closed := make(map[*lane]error, len(c.lanes))
	for l, ws := range waiters {
		closed[l] = l.join(ws...)
	}
	for i, r := range requests {
		l := c.laneOf(r.Key)
		if errs[i] = closed[l]; errs[i] == nil {
			decisions[i], errs[i] = c.await(ctx, l, waiters[l][0])
			waiters[l] = waiters[l][1:]
		}
	}
	return decisions, errs
}

func (c *Combiner) laneOf(key string) *lane {
	return &c.lanes[maphash.String(c.seed, key)%uint64(len(c.lanes))]
}

// await the answer of a waiter that has joined the lane.
func (c *Combiner) await(ctx context.Context, l *lane, w *waiter) (rate.Decision, error) {
	left := false
	decision, err := w.Await(ctx, func() bool {
		left = l.leave(w)
		return left
	})
	if !left {
		c.recycle(w)
	}
	return decision, err
}

// Close lets waiting callers have their answers as long as ctx lasts, and returns when no
// goroutine is left. The error is that of ctx if a call or a caller was given up.
func (c *Combiner) Close(ctx context.Context) error {
	if c == nil {
		return nil
	}
	for i := range c.lanes {
		c.lanes[i].close()
	}
	return c.Stage.Close(ctx, func() (busy bool) {
		for i := range c.lanes {
			busy = c.lanes[i].abort() || busy
		}
		return busy
	})
}

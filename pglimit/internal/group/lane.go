// Package group sends groups of requests that arrive during a call together in the next one.
package group

import (
	"context"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxRequests bounds how many requests one call decides, and so how long the next callers have to
// wait.
const maxRequests = 1024

// Calls are what a Lane calls.
type Calls struct {
	// Send asks the strategy.
	Send func(ctx context.Context, groups [][]rate.Request) ([][]rate.Decision, error)

	// GiveBack returns tokens to their buckets.
	GiveBack func(ctx context.Context, refunds []rate.Refund) error

	// Recall answers a group that is known to be denied.
	Recall func(group []rate.Request) ([]rate.Decision, bool)
}

// Lane has at most one call under way, besides those that wait for held rows. A group that finds
// it idle goes out at once. Later groups form a queue, which is the next call when this one
// returns. So a process never contends with itself for the rows that all its groups share.
type Lane struct {
	flight.Stage

	calls Calls

	mu      sync.Mutex
	queue   []*waiter
	held    map[rate.Bucket][]*waiter // groups that wait for a row which somebody else holds
	serving bool                      // a goroutine serves the queue until it is empty
	closed  bool
}

// waiter is a caller that waits for an answer. One that leaves is dropped when its turn comes.
type waiter struct {
	wait.Caller[[]rate.Request, []rate.Decision]
	ctx    context.Context
	flight *flight.Flight // the call that it waits for, once it is off the queue; guarded by the lane's lock
}

// New is a Lane.
func New(calls Calls) *Lane {
	l := &Lane{calls: calls, held: make(map[rate.Bucket][]*waiter)}
	l.Begin()
	return l
}

// Decide waits for the answer in the caller's goroutine. The call is made in the lane's, so that
// a caller whose context ends can leave while the call goes on. The limits of the requests are
// such that the strategy keeps them.
func (l *Lane) Decide(ctx context.Context, group []rate.Request) ([]rate.Decision, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &waiter{ctx: ctx}
	w.Begin(group)
	if err := l.join(w); err != nil {
		return nil, err
	}
	return w.Await(ctx, func() bool { return l.leave(w) })
}

func (l *Lane) join(w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return rate.ErrClosed
	}
	l.queue = append(l.queue, w)
	l.start()
	return nil
}

// start serving the queue, unless it is empty. The lane is locked.
func (l *Lane) start() {
	if l.serving || len(l.queue) == 0 {
		return
	}
	l.serving = true
	l.Running.Go(l.serve)
}

// leave returns false if the caller has been answered, and so cannot leave.
func (l *Lane) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.Leave() {
		return false
	}
	if w.flight != nil {
		w.flight.Leave()
	}
	return true
}

// serve sends call after call until nobody waits.
func (l *Lane) serve() {
	for f, waiters := l.gather(); f != nil; f, waiters = l.gather() {
		_ = l.ask(f, waiters) // the callers have been told of the error
		f.Land()
	}
}

// gather takes the next call's groups off the queue. If the queue is empty, the lane becomes idle
// and gather returns nil. Groups for a held row are put aside. A group that has another limit for
// a bucket than one before it begins the next call.
func (l *Lane) gather() (*flight.Flight, []*waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var waiters []*waiter
	limits, requests := make(map[rate.Bucket]rate.Limit), 0
	for ; len(l.queue) > 0; l.queue = l.queue[1:] {
		w := l.queue[0]
		if w.Left() {
			continue
		}
		if bucket, held := l.holds(w.Request); held {
			l.waitFor(bucket, w)
			continue
		}
		requests += len(w.Request)
		if agreed := flight.Agree(limits, w.Request...); len(waiters) > 0 && (!agreed || requests > maxRequests) {
			break
		}
		waiters = append(waiters, w)
	}
	if len(waiters) == 0 {
		l.serving, l.queue = false, nil
		return nil, nil
	}
	return l.takeOff(waiters), waiters
}

// takeOff makes a flight for waiters that are off the queue. The lane is locked.
func (l *Lane) takeOff(waiters []*waiter) *flight.Flight {
	f := l.TakeOff(waiters[0].ctx, len(waiters))
	for _, w := range waiters {
		w.flight = f
	}
	return f
}

// Close lets waiting callers have their answers as long as ctx lasts, and returns when no
// goroutine is left. The error is that of ctx if a call or a caller was given up.
func (l *Lane) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	return l.Stage.Close(ctx, l.end)
}

// end gives up all waiters. It returns true if the lane was not idle.
func (l *Lane) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := l.serving || len(l.held) > 0
	waiting := l.queue
	for bucket, waiters := range l.held {
		waiting, l.held[bucket] = append(waiting, waiters...), nil
	}
	l.queue = nil
	for _, w := range waiting {
		w.Answer(nil, rate.ErrClosed)
	}
	return busy
}

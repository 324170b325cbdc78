// Package group sends groups of requests that arrive during a call together in the next one.
package group

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// maxRequests bounds how many requests one call decides, and so how long the next callers
	// have to wait. (A larger group goes out by itself.)
	maxRequests = 1024

	// settleTime is how long a call goes on when all its callers have left: long enough to
	// learn what it took and give that back. Then its connection is given up.
	settleTime = time.Second
)

// Calls are what a Lane calls.
type Calls struct {
	// Send asks the strategy.
	Send func(ctx context.Context, groups [][]rate.Request) ([][]rate.Decision, error)

	// GiveBack returns tokens to their buckets.
	GiveBack func(ctx context.Context, refunds []rate.Refund) error

	// Recall answers a group that is known to be denied.
	Recall func(group []rate.Request) ([]rate.Decision, bool)
}

// Stats of a Lane.
type Stats struct {
	GivenBack atomic.Int64 // tokens granted to callers who had left, and given back
	Lost      atomic.Int64 // tokens that could not be given back, or that a failed call may have taken
}

// Lane has at most one call under way, besides those that wait for held rows. A group that finds
// it idle goes out at once. Later groups form a queue, which is the next call when this one
// returns. So a process never contends with itself for the rows that all its groups share.
type Lane struct {
	Stats Stats

	calls Calls

	mu      sync.Mutex
	queue   []*waiter
	held    map[rate.Bucket][]*waiter // groups that wait for a row which somebody else holds
	serving bool                      // a goroutine serves the queue until it is empty
	closed  bool

	running  sync.WaitGroup
	patience chan struct{}   // has room for each call that may wait for a held row
	aborted  context.Context // ends when Close gives up waiting
	abort    context.CancelFunc
}

// waiter is a caller that waits for an answer. One that leaves is dropped when its turn comes.
type waiter struct {
	wait.Of[[]rate.Request, []rate.Decision]
	ctx    context.Context
	flight *flight // the call that it waits for, once it is off the queue; guarded by the lane's lock
}

// flight is a call under way, and how to give it up.
type flight struct {
	ctx     context.Context
	cancel  context.CancelFunc
	waiters []*waiter
	waiting atomic.Int64
	landed  bool        // the call is over; guarded by the lane's lock
	giveUp  *time.Timer // set when nobody waits any more
}

// New is a Lane.
func New(calls Calls) *Lane {
	l := &Lane{calls: calls, held: make(map[rate.Bucket][]*waiter), patience: make(chan struct{}, maxPatient)}
	l.aborted, l.abort = context.WithCancel(context.Background())
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
	l.running.Go(l.serve)
}

// leave returns false if the caller has been answered, and so cannot leave.
func (l *Lane) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.Leave() {
		return false
	}
	if f := w.flight; f != nil && f.waiting.Add(-1) == 0 && !f.landed {
		f.giveUp = time.AfterFunc(settleTime, f.cancel)
	}
	return true
}

// serve sends call after call until nobody waits.
func (l *Lane) serve() {
	for f := l.gather(); f != nil; f = l.gather() {
		_ = l.ask(f, f.waiters) // the callers have been told of the error
		l.land(f)
		runtime.Gosched() // so that callers who ask again at once join the next call, not the one after it
	}
}

// gather takes the next call's groups off the queue. If the queue is empty, the lane becomes idle
// and gather returns nil. Groups for a held row are put aside. A group that has another limit for
// a bucket than one before it begins the next call.
func (l *Lane) gather() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	var waiters []*waiter
	limits, requests := make(map[rate.Bucket]rate.Limit), 0
	for ; len(l.queue) > 0; l.queue = l.queue[1:] {
		w := l.queue[0]
		if bucket, held := l.holds(w.Request); held {
			l.held[bucket] = append(l.held[bucket], w)
			continue
		}
		requests += len(w.Request)
		if len(waiters) > 0 && (requests > maxRequests || !agree(limits, w.Request)) {
			break
		}
		if !w.Left() {
			note(limits, w.Request)
			waiters = append(waiters, w)
		}
	}
	if len(waiters) == 0 {
		l.serving, l.queue = false, nil
		return nil
	}
	return l.takeOff(waiters...)
}

// agree says whether a group has no other limit for a bucket than the groups before it.
func agree(limits map[rate.Bucket]rate.Limit, group []rate.Request) bool {
	for i := range group {
		if limit, known := limits[group[i].Bucket()]; known && limit != group[i].Limit {
			return false
		}
	}
	return true
}

func note(limits map[rate.Bucket]rate.Limit, group []rate.Request) {
	for i := range group {
		limits[group[i].Bucket()] = group[i].Limit
	}
}

// takeOff makes a flight for waiters that are off the queue. The lane is locked.
func (l *Lane) takeOff(waiters ...*waiter) *flight {
	f := &flight{waiters: waiters}
	// The call has the values of the first caller's context, such as a trace, but does not end
	// with that context.
	ctx, cancel := context.WithCancel(context.WithoutCancel(waiters[0].ctx))
	stop := context.AfterFunc(l.aborted, cancel)
	f.ctx, f.cancel = ctx, func() { stop(); cancel() }
	f.waiting.Store(int64(len(waiters)))
	for _, w := range waiters {
		w.flight = f
	}
	return f
}

// land ends the call: it need not be given up any more.
func (l *Lane) land(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.landed = true
	if f.giveUp != nil {
		f.giveUp.Stop()
	}
	f.cancel()
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
	done := make(chan struct{})
	go func() {
		l.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	busy := l.end()
	<-done
	if busy {
		return ctx.Err()
	}
	return nil
}

// end gives up the calls under way and all waiters. It returns true if the lane was not idle.
func (l *Lane) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := l.serving || len(l.held) > 0
	l.abort()
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

// blame adds ErrClosed to the error of a call that may have failed because Close gave it up.
func (l *Lane) blame(err error) error {
	if l.aborted.Err() != nil && !errors.Is(err, rate.ErrClosed) {
		return fmt.Errorf("%w: %v", rate.ErrClosed, err) //nolint:errorlint // not what the caller did
	}
	return err
}

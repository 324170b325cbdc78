package combine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// lane serves its share of the keys, with at most one call under way.
type lane struct {
	combiner *Combiner

	mu      *sync.Mutex // shared with the lanes of its stuck buckets
	queue   queue
	running bool // a goroutine serves the queue until it is empty
	closed  bool
	aborted bool
	cancel  context.CancelFunc // of the call under way

	learned uint64 // Calls.Learned when the last batch was formed

	// stuck has a lane for each bucket of this lane whose row somebody else holds locked. No
	// requests for these buckets are in this lane's queue.
	stuck map[rate.Bucket]*lane

	alone // the fields that only the lane of a stuck bucket uses
}

// flight is a call under way: how many callers wait for it, and how to give it up.
type flight struct {
	waiting atomic.Int64
	cancel  context.CancelFunc
	landed  bool        // the call is over; guarded by the lane's lock
	giveUp  *time.Timer // set when nobody waits any more
}

// join the queue. If the lane is idle, the requests go out at once. The error is ErrClosed.
func (l *lane) join(waiters ...*waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return rate.ErrClosed
	}
	for _, w := range waiters {
		to := l
		if own := l.stuck[w.Request.Bucket()]; own != nil {
			to = own
		}
		to.queue.push(w)
		to.start()
	}
	return nil
}

// start serving the queue, unless it is empty. The lane is locked.
func (l *lane) start() {
	if l.running || l.queue.first == nil {
		return
	}
	l.running = true
	l.combiner.running.Add(1)
	if l.home == nil {
		go l.serve()
	} else {
		go l.serveAlone()
	}
}

// leave returns false if the caller has been answered, and so cannot leave.
func (l *lane) leave(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.Leave() {
		return false
	}
	if w.queued {
		if own := l.stuck[w.Request.Bucket()]; own != nil {
			l = own
		}
		l.queue.remove(w)
		l.combiner.recycle(w)
		return true
	}
	if flight := w.flight; flight.waiting.Add(-1) == 0 && !flight.landed {
		flight.giveUp = time.AfterFunc(settleTime, flight.cancel)
	}
	return true
}

// serve sends batch after batch until nobody waits.
func (l *lane) serve() {
	defer l.combiner.running.Done()
	var b batch
	for l.gather(&b) {
		l.send(&b)
		if !b.denied {
			// Other goroutines run first, so that callers who have just been answered and
			// ask again at once join the next batch, not the one after it. Denied callers
			// do not join: the memory answers them. When that memory ends, the first
			// caller must find the lane idle.
			runtime.Gosched()
		}
	}
}

// land ends the call: it need not be given up any more.
func (l *lane) land(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.landed = true
	if f.giveUp != nil {
		f.giveUp.Stop()
	}
	f.cancel()
}

// gather takes the next batch off the queue. If the queue is empty, the lane becomes idle and
// gather returns false.
func (l *lane) gather(b *batch) bool {
	b.reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.home != nil {
		l.goHome()
	}
	if l.queue.first == nil {
		l.running, l.cancel = false, nil
		return false
	}
	// The call has the values of the first caller's context, such as a trace, but does not
	// end with that context.
	b.flight = &flight{}
	b.ctx, b.flight.cancel = context.WithCancel(context.WithoutCancel(l.queue.first.ctx))
	l.cancel = b.flight.cancel
	for w := l.queue.first; w != nil && b.gathered < maxBatch; w = l.queue.first {
		l.queue.remove(w)
		w.flight = b.flight
		b.waiters = append(b.waiters, w)
		b.gathered++
	}
	b.flight.waiting.Store(b.gathered)
	return true
}

// send makes the call and tells the callers.
func (l *lane) send(b *batch) {
	defer l.land(b.flight)
	l.denyKnown(b)
	_ = l.ask(b) // the callers have been told of the error
}

// ask asks the strategy and answers the callers. If the strategy takes nothing because of one
// bucket among several, ask divides the batch. The error is one for which no bucket is to
// blame: asking about other buckets would fail too.
func (l *lane) ask(b *batch) error {
	b.combine(!l.patient)
	l.putBack(b)
	if len(b.requests) == 0 || b.flight.waiting.Load() == 0 {
		return nil // everybody has an answer, or has left and is not charged
	}
	decisions, err := l.combiner.calls.Send(b.ctx, b.requests)
	if err == nil {
		l.tell(b, decisions)
		return nil
	}
	switch {
	case !errors.Is(err, rate.ErrNothingTaken):
		err = l.blame(err)
		l.combiner.Stats.Lost.Add(b.fail(err))
		return err
	case b.severalBuckets():
		return l.askApart(b)
	case errors.Is(err, rate.ErrLocked) && !l.patient && l.stick(b):
		return nil
	}
	b.fail(l.blame(err))
	return nil
}

// putBack puts the waiters that are left for the next batch at the front of the queue.
func (l *lane) putBack(b *batch) {
	if len(b.later) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range slices.Backward(b.later) {
		switch {
		case w.Left():
		case l.aborted: // nobody sends them any more
			w.Answer(rate.Decision{}, rate.ErrClosed)
			b.flight.waiting.Add(-1)
		default:
			l.queue.pushFront(w)
			b.flight.waiting.Add(-1)
		}
	}
}

// tell the callers. Tokens granted to callers who have left are passed on, or given back.
func (l *lane) tell(b *batch, decisions []rate.Decision) {
	b.share(decisions)
	l.unstick()
	if b.unclaimed {
		l.passOn(b, decisions)
	}
	if tokens := b.refund(decisions); tokens > 0 {
		l.giveBack(b, tokens)
	}
}

// denyKnown answers waiters whose bucket the previous call found empty, without sending them.
func (l *lane) denyKnown(b *batch) {
	learned := l.combiner.calls.Learned()
	if learned == l.learned {
		return // nothing new: the callers have asked the memory already
	}
	l.learned = learned
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		decision, known := l.combiner.calls.Recall(&w.Request)
		if !known {
			return false
		}
		b.denied = true
		if w.Answer(decision, nil) { // else leave has counted it out
			b.flight.waiting.Add(-1)
		}
		return true
	})
}

// blame adds ErrClosed to the error of a call that may have failed because Close gave it up.
func (l *lane) blame(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aborted {
		return fmt.Errorf("%w: %v", rate.ErrClosed, err) //nolint:errorlint // not what the caller did
	}
	return err
}

// close makes join fail from now on.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// abort gives up the call under way and all waiters. It returns true if the lane was not idle.
func (l *lane) abort() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := l.end()
	for _, own := range l.stuck {
		busy = own.end() || busy
	}
	return busy
}

// end is abort without the lanes of stuck buckets. The lane is locked.
func (l *lane) end() bool {
	l.aborted = true
	if l.cancel != nil {
		l.cancel()
	}
	for w := l.queue.first; w != nil; w = l.queue.first {
		l.queue.remove(w)
		w.Answer(rate.Decision{}, rate.ErrClosed)
	}
	return l.running
}

package combine

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// lane serves its share of the keys, with at most one call under way.
type lane struct {
	combiner *Combiner

	mu      *sync.Mutex // shared with the lanes of its held buckets
	queue   queue
	serving bool // a goroutine serves the queue until it is empty
	closed  bool

	learned uint64 // Calls.Learned when the last batch was formed

	// held has a lane for each bucket of this lane whose row somebody else holds locked. No
	// requests for these buckets are in this lane's queue.
	held map[rate.Bucket]*lane

	heldLane // the fields that only the lane of a held bucket uses
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
		if own := l.held[w.Request.Bucket()]; own != nil {
			to = own
		}
		to.queue.push(w)
		to.start()
	}
	return nil
}

// start serving the queue, unless it is empty. The lane is locked.
func (l *lane) start() {
	if l.serving || l.queue.first == nil {
		return
	}
	l.serving = true
	l.combiner.Running.Add(1)
	if l.home == nil {
		go l.serve()
	} else {
		go l.serveHeld()
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
		if own := l.held[w.Request.Bucket()]; own != nil {
			l = own
		}
		l.queue.remove(w)
		l.combiner.recycle(w)
		return true
	}
	w.flight.Leave()
	return true
}

// serve sends batch after batch until nobody waits.
func (l *lane) serve() {
	defer l.combiner.Running.Done()
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
		l.serving = false
		return false
	}
	for w := l.queue.first; w != nil && len(b.waiters) < maxBatch; w = l.queue.first {
		l.queue.remove(w)
		b.waiters = append(b.waiters, w)
	}
	b.flight = l.combiner.TakeOff(b.waiters[0].ctx, len(b.waiters))
	for _, w := range b.waiters {
		w.flight = b.flight
	}
	return true
}

// send makes the call and tells the callers.
func (l *lane) send(b *batch) {
	defer b.flight.Land()
	l.denyKnown(b)
	_ = l.ask(b) // the callers have been told of the error
}

// ask asks the strategy and answers the callers. If the strategy takes nothing because of one
// bucket among several, ask divides the batch. The error is one for which no bucket is to
// blame: asking about other buckets would fail too.
func (l *lane) ask(b *batch) error {
	b.combine(!l.patient)
	l.putBack(b)
	if len(b.requests) == 0 || b.flight.Waiting.Load() == 0 {
		return nil // everybody has an answer, or has left and is not charged
	}
	decisions, err := l.combiner.calls.Send(b.flight.Ctx, b.requests)
	if err == nil {
		l.tell(b, decisions)
		return nil
	}
	switch {
	case !errors.Is(err, rate.ErrNothingTaken):
		err = l.combiner.Blame(err)
		l.combiner.Stats.Lost.Add(b.fail(err))
		return err
	case b.severalBuckets():
		return l.askApart(b)
	case errors.Is(err, rate.ErrLocked) && !l.patient && l.hold(b):
		return nil
	}
	b.fail(l.combiner.Blame(err))
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
		case l.combiner.Aborted(): // nobody sends them any more
			w.Answer(rate.Decision{}, rate.ErrClosed)
			b.flight.Waiting.Add(-1)
		default:
			l.queue.pushFront(w)
			b.flight.Waiting.Add(-1)
		}
	}
}

// tell the callers. Tokens granted to callers who have left are passed on, or given back.
func (l *lane) tell(b *batch, decisions []rate.Decision) {
	b.share(decisions, l.combiner.calls.Rule)
	l.answered()
	if b.unclaimed {
		l.passOn(b, decisions)
	}
	b.refund(decisions)
	// The next requests for these buckets are in this lane, so they are sent after it.
	l.combiner.GiveBack(b.flight, b.refunds, l.combiner.calls.GiveBack)
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
			b.flight.Waiting.Add(-1)
		}
		return true
	})
}

// close makes join fail from now on.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// abort gives up all waiters. It returns true if the lane was not idle.
func (l *lane) abort() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := l.end()
	for _, own := range l.held {
		busy = own.end() || busy
	}
	return busy
}

// end is abort without the lanes of held buckets. The lane is locked.
func (l *lane) end() bool {
	for w := l.queue.first; w != nil; w = l.queue.first {
		l.queue.remove(w)
		w.Answer(rate.Decision{}, rate.ErrClosed)
	}
	return l.serving
}

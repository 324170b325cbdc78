package pglimit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lane has the requests of its share of the keys, and at most one call under way.
type lane struct {
	combiner *combiner

	mu      sync.Mutex
	queue   queue
	running bool // a goroutine serves the queue, until it is empty
	closed  bool
	aborted bool
	cancel  context.CancelFunc // of the call under way

	learned uint64 // what the memory knew when the last batch was formed
}

// flight is a call under way: who waits for it, and how to give it up.
type flight struct {
	waiting atomic.Int64
	cancel  context.CancelFunc
	landed  bool        // with the lane's lock
	giveUp  *time.Timer // once nobody waits
}

// join the queue. If the lane is idle, the request goes out at once.
func (l *lane) join(w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.queue.push(w)
	if !l.running {
		l.running = true
		l.combiner.running.Add(1)
		go l.serve()
	}
	return nil
}

// leave says whether the caller may go. If not, it has an answer.
func (l *lane) leave(w *waiter) bool {
	l.mu.Lock()
	if w.state.Load() == queued {
		l.queue.remove(w)
		l.mu.Unlock()
		l.combiner.recycle(w)
		return true
	}
	flight := w.flight
	l.mu.Unlock()
	if !w.state.CompareAndSwap(sent, left) {
		return false
	}
	if flight.waiting.Add(-1) == 0 {
		l.mu.Lock()
		if !flight.landed {
			flight.giveUp = time.AfterFunc(settleTime, flight.cancel)
		}
		l.mu.Unlock()
	}
	return true
}

// serve sends batch after batch until nobody waits.
func (l *lane) serve() {
	defer l.combiner.running.Done()
	var b batch
	for l.gather(&b) {
		l.send(&b)
		l.land(b.flight)
		if !b.denied {
			// Who is ready to run goes first: callers who have just been answered, and ask
			// again at once, are part of the next batch instead of the one after it. Those
			// who were denied are not: the memory answers them. When it ends, the first who
			// asks must find the lane idle.
			runtime.Gosched()
		}
	}
}

// land ends the call: nobody has to give it up any more.
func (l *lane) land(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.landed = true
	if f.giveUp != nil {
		f.giveUp.Stop()
	}
	f.cancel()
}

// gather takes the next batch off the queue. It returns false, and the lane is idle, if
// nobody waits.
func (l *lane) gather(b *batch) bool {
	b.reset()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue.first == nil {
		l.running, l.cancel = false, nil
		return false
	}
	// The call has what the first caller's context carries, such as a trace, but it
	// does not end with it.
	b.flight = &flight{}
	b.ctx, b.flight.cancel = context.WithCancel(context.WithoutCancel(l.queue.first.ctx))
	l.cancel = b.flight.cancel
	for w := l.queue.first; w != nil && b.gathered < maxBatch; w = l.queue.first {
		l.queue.remove(w)
		w.flight = b.flight
		w.state.Store(sent)
		b.waiters = append(b.waiters, w)
		b.gathered++
	}
	b.flight.waiting.Store(b.gathered)
	return true
}

// send makes the call and tells the callers.
func (l *lane) send(b *batch) {
	c := l.combiner
	if memory := c.limiter.memory; memory != nil {
		l.denyKnown(b, memory)
	}
	if b.combine(); len(b.requests) == 0 || b.flight.waiting.Load() == 0 {
		return // everybody has an answer, or has left and is not charged
	}
	decisions, err := c.send(b.ctx, b.requests)
	if err != nil {
		c.limiter.counters.lost.Add(b.fail(l.blame(err)))
		return
	}
	c.limiter.counters.decided.Add(b.share(decisions))
	if b.unclaimed {
		l.passOn(b, decisions)
	}
	if tokens := b.refund(decisions); tokens > 0 {
		l.giveBack(b, tokens)
	}
}

// denyKnown answers those of whose keys the call before has shown that they are denied.
func (l *lane) denyKnown(b *batch, memory *memory) {
	learned := memory.learned.Load()
	if learned == l.learned {
		return // they have asked already
	}
	l.learned = learned
	now := memory.now()
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		decision, known := memory.recallAt(now, &w.request)
		if !known {
			return false
		}
		if w.answer(decision, nil) { // else it has left, and counted itself out
			b.flight.waiting.Add(-1)
			memory.counters.remembered.add()
		}
		return true
	})
}

// blame the end of the limiter, if that was why the call failed.
func (l *lane) blame(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aborted {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// passOn gives tokens of callers who have left to those who wait for the same key now,
// in order of arrival.
func (l *lane) passOn(b *batch, decisions []Decision) {
	slots := make(map[string]int)
	for slot, tokens := range b.leftOver {
		if tokens > 0 {
			slots[b.requests[slot].Key] = slot
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := l.queue.first; w != nil && len(slots) > 0; {
		next := w.next
		if slot, wanted := slots[w.request.Key]; wanted {
			tokens := w.request.Tokens
			if tokens == 0 || tokens > b.leftOver[slot] {
				delete(slots, w.request.Key) // nobody is served before it
			} else {
				b.leftOver[slot] -= tokens
				l.queue.remove(w)
				w.state.Store(sent)
				l.combiner.limiter.counters.passedOn.Add(tokens)
				l.combiner.limiter.counters.decided.Add(1)
				w.answer(decisions[slot].before(b.leftOver[slot], &b.requests[slot], &w.request), nil)
			}
		}
		w = next
	}
}

// giveBack returns what is left over still. Whoever asks for these keys next is in
// this lane, and is sent after it.
func (l *lane) giveBack(b *batch, tokens int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), settleTime)
	defer cancel()
	l.mu.Lock()
	l.cancel = cancel
	if l.aborted {
		cancel()
	}
	l.mu.Unlock()
	limiter := l.combiner.limiter
	err := limiter.strategy.GiveBack(ctx, limiter.db, b.refunds)
	if limiter.memory != nil { // also after an error, which may hide that it was done
		for i := range b.refunds {
			limiter.memory.forget(b.refunds[i].Key)
		}
	}
	if err != nil {
		limiter.counters.lost.Add(tokens)
		return
	}
	limiter.counters.givenBack.Add(tokens)
}

// close lets nobody join any more.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// abort gives up the call under way and all who wait. It says whether there was anything.
func (l *lane) abort() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.aborted = true
	if l.cancel != nil {
		l.cancel()
	}
	for w := l.queue.first; w != nil; w = l.queue.first {
		l.queue.remove(w)
		w.state.Store(sent)
		w.answer(Decision{}, ErrClosed)
	}
	return l.running
}

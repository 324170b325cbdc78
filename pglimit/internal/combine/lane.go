package combine

import (
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// lane serves its share of the keys, or the groups, with at most one call under way.
type lane struct {
	combiner *Combiner
	number   int

	mu      *sync.Mutex // shared with the lanes of its held buckets
	queue   queue
	serving bool // a call is under way, or a goroutine serves the queue until it is empty
	closed  bool
	batch   batch // of the call under way

	learned uint64 // Functions.Learned when the last batch was formed

	// held has a lane for each bucket of this lane whose row somebody else holds locked. No
	// units for these buckets are in this lane's queue.
	held map[rate.Bucket]*lane

	heldLane // the fields that only the lane of a held bucket uses
	patience chan struct{}
}

// joinAlone is join for one waiter, who has to call sendOwn if the lane was idle.
func (l *lane) joinAlone(w *waiter) (idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.serving || l.laneFor(w) != l {
		l.joinLocked(w)
		return false
	}
	call := l.combiner.StartOwn(w.ctx)
	l.begin()
	l.queue.push(w)
	l.form(&l.batch, call)
	return true
}

// join the queue. If the lane is idle, the units go out at once. After Close, the answer is ErrClosed.
func (l *lane) join(waiters []*waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range waiters {
		l.joinLocked(w)
	}
}

func (l *lane) joinLocked(w *waiter) {
	if l.closed {
		w.Answer(nil, rate.ErrClosed)
		return
	}
	to := l.laneFor(w)
	to.queue.push(w)
	to.start()
}

// begin a call, or to serve the queue. The lane is locked.
func (l *lane) begin() {
	l.serving = true
	l.combiner.Running.Add(1)
}

// sendOwn sends the batch of a caller who found the lane idle, in the caller's own goroutine: to hand it to another
// and be woken by it costs 20 to 45 µs and helps nobody. The caller cannot leave meanwhile, so the call ends with the
// caller's context, as without combining, and may then have taken tokens that nobody has.
func (l *lane) sendOwn() {
	defer l.endOwn() // also if the strategy panics and somebody recovers, as net/http does
	l.send(&l.batch)
}

// endOwn ends what joinAlone began. A goroutine serves those who have come since.
func (l *lane) endOwn() {
	defer l.combiner.Running.Done()
	l.batch.reset() // an idle lane keeps no caller's context
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = false
	l.start()
}

// start serving the queue, unless it is empty. The lane is locked.
func (l *lane) start() {
	if l.serving || l.queue.first == nil {
		return
	}
	l.begin()
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
	if w.queue == nil {
		w.call.Leave()
		return true
	}
	w.queue.remove(w)
	l.combiner.recycle(w)
	return true
}

// serve sends batch after batch until nobody waits.
func (l *lane) serve() {
	defer l.combiner.Running.Done()
	b := &l.batch
	for l.gather(b) {
		l.send(b)
		if b.comeAgain {
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
		l.endHeld()
	}
	if l.queue.first == nil {
		l.serving = false
		return false
	}
	l.form(b, l.combiner.Start(l.queue.first.ctx))
	return true
}

// form the batch of the call from the waiters at the head of the queue, which is not empty. The lane is locked.
func (l *lane) form(b *batch, call *wait.Call) {
	b.patient = l.patient
	_, b.single = l.combiner.do.Rule.(rate.Apart)
	requests, most := 0, maxBatch
	if b.single {
		most = maxSingle
	}
	shard := 0
	var next *waiter
	for w := l.queue.first; w != nil; w = next {
		next = w.next
		first := len(b.waiters) == 0
		if l.combiner.do.Shard != nil {
			if of := l.combiner.do.Shard(w.Request[0].Key); first {
				shard = of
			} else if of != shard {
				continue
			}
		}
		requests += len(w.Request)
		if !first && (requests > most || b.patient && isGroup(w.Request)) {
			break
		}
		l.queue.remove(w)
		b.waiters = append(b.waiters, w)
	}
	b.comeAgain = !isGroup(b.waiters[0].Request)
	b.call = call
	call.Waiting.Store(int64(len(b.waiters)))
	for _, w := range b.waiters {
		w.call = call
	}
}

// send makes the call and tells the callers.
func (l *lane) send(b *batch) {
	defer b.call.End()
	l.denyKnown(b)
	_ = l.ask(b) // the callers have been told of the error
}

// ask asks the strategy and answers the callers. If the strategy takes nothing because of some of
// the units, ask divides the batch. The error is one for which no unit is to
// blame: asking about others would fail too.
func (l *lane) ask(b *batch) error {
	b.combine()
	l.putBack(b)
	if len(b.requests) == 0 || b.call.Waiting.Load() == 0 {
		return nil // everybody has an answer, or has left and is not charged
	}
	decisions, err := l.combiner.do.Send(b.call.Ctx, b.requests)
	if err == nil {
		l.tell(b, decisions)
		return nil
	}
	one := b.isOne() // hold drops callers who have left
	switch {
	case !errors.Is(err, rate.ErrNothingTaken):
		err = l.combiner.Blame(err)
		l.combiner.Stats.Lost.Add(b.fail(err))
		return err
	case errors.Is(err, rate.ErrLocked) && l.hold(b, err):
		return l.ask(b) // those for other buckets
	case !one:
		return l.askApart(b)
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
			w.Answer(nil, rate.ErrClosed)
			b.call.Waiting.Add(-1)
		default:
			l.queue.pushFront(w)
			b.call.Waiting.Add(-1)
		}
	}
	b.later = b.later[:0]
}

// tell the callers. Tokens granted to callers who have left are passed on, or given back.
func (l *lane) tell(b *batch, decisions []rate.Decision) {
	b.share(decisions, l.combiner.do.Rule)
	l.answered(b)
	if b.unclaimed {
		l.passOn(b, decisions)
	}
	// The next units for these buckets are in this lane, so they are sent after it.
	l.combiner.GiveBack(b.call, b.unused(decisions), l.combiner.do.GiveBack)
}

// passOn gives tokens of callers who have left to callers who wait for the same bucket now, in
// order of arrival.
func (l *lane) passOn(b *batch, decisions []rate.Decision) {
	slots, rule := make(map[rate.Bucket]int), l.combiner.do.Rule
	for slot, tokens := range b.leftOver {
		if tokens > 0 {
			slots[b.requests[slot].Bucket()] = slot
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := l.queue.first; w != nil && len(slots) > 0; {
		next, r := w.next, &w.Request[0]
		if slot, wanted := slots[r.Bucket()]; wanted {
			tokens, bucket := r.Tokens, r.Bucket()
			lessDurable := b.requests[slot].Durability < r.Durability
			if tokens == 0 || lessDurable || b.requests[slot].Limit != r.Limit || !b.fits(slot, r, decisions, rule) {
				delete(slots, bucket) // later waiters for this bucket must not overtake it
			} else {
				b.leftOver[slot] -= tokens
				l.queue.remove(w)
				l.combiner.Stats.PassedOn.Add(tokens)
				w.answer(part(rule, decisions[slot], b.leftOver[slot], &b.requests[slot], r))
			}
		}
		w = next
	}
}

// denyKnown answers waiters whose buckets the previous call found empty, without sending them. A request behind one
// that is sent for the same bucket is sent too: what it is told depends on what that one takes.
func (l *lane) denyKnown(b *batch) {
	learned := l.combiner.do.Learned()
	if learned == l.learned {
		return // nothing new: the callers have asked the memory already
	}
	l.learned = learned
	sent := make(map[rate.Bucket]bool)
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		w.answers = append(w.answers[:0], make([]rate.Decision, len(w.Request))...)
		of := w.Request[0].Bucket()
		if !isGroup(w.Request) && sent[of] || !l.combiner.do.Recall(w.Request, w.answers) {
			sent[of] = true
			return false
		}
		b.comeAgain = false
		if w.Answer(w.answers, nil) { // else leave has counted it out
			b.call.Waiting.Add(-1)
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
		w.Answer(nil, rate.ErrClosed)
	}
	return l.serving
}

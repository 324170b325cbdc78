package combine

import (
	"errors"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxPatient is how many calls for keys, and how many for groups, may wait for rows that somebody
// else holds locked, each on a connection of its own. The callers of other held rows wait for their turn.
const maxPatient = 2

// heldLane has the fields that only the lane of a held bucket uses. A bucket is held while somebody
// else holds its row locked.
//
// Ordinary calls are impatient, so that a held bucket delays the others of its lane only
// for a moment. Then the callers of the held bucket, also later ones, wait in the bucket's own
// lane, whose call waits for the row as long as it takes: for all requests for the bucket, or for
// one group.
//
// The bucket goes back to its ordinary lane, home, when nobody waits for it or an impatient
// call was answered. The answer to a patient call does not show whether the next call would
// have to wait again. And if buckets stayed for as long as somebody waits, many held buckets
// would keep each other from being combined long after the locks are gone.
type heldLane struct {
	home    *lane // nil in an ordinary lane
	bucket  rate.Bucket
	patient bool // the next call waits for the row
	healed  bool // an impatient call was answered
}

// laneFor is the lane in which the waiter waits: that of a held bucket of its unit, or this one. The
// lane is locked.
func (l *lane) laneFor(w *waiter) *lane {
	if len(l.held) > 0 {
		for i := range w.Request {
			if own := l.held[w.Request[i].Bucket()]; own != nil {
				return own
			}
		}
	}
	return l
}

// hold moves the callers of held buckets from the batch to the front of these buckets' own lanes. It
// returns false, and moves nobody, if it does not know which buckets are held, or the limiter has ended.
func (l *lane) hold(b *batch, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.patient || l.combiner.Aborted() {
		return false
	}
	before := len(b.waiters)
	if l.home != nil { // all of them wait for its bucket
		l.patient = true
		b.moveTo(func(*waiter) *lane { return l })
		return true
	}
	var named *rate.HeldError
	switch {
	case errors.As(err, &named):
		for _, bucket := range named.Held {
			l.holdBucket(bucket)
		}
		b.moveTo(l.laneFor)
	case b.isOne() && isGroup(b.waiters[0].Request): // no other group need wait for what it waits for
		own := l.holdBucket(rate.Bucket{})
		b.moveTo(func(*waiter) *lane { return own })
	case b.isOne():
		l.holdBucket(b.requests[0].Bucket())
		b.moveTo(l.laneFor)
	}
	for bucket, own := range l.held {
		if own.start(); !own.serving { // nobody waits for it
			delete(l.held, bucket)
		}
	}
	return len(b.waiters) < before
}

// holdBucket makes the bucket's own lane, unless there is one, for those in the queue. The lane is locked.
func (l *lane) holdBucket(bucket rate.Bucket) *lane {
	own := l.held[bucket]
	if own == nil {
		own = &lane{combiner: l.combiner, mu: l.mu, patience: l.patience, heldLane: heldLane{home: l, bucket: bucket}}
		if l.held == nil {
			l.held = make(map[rate.Bucket]*lane)
		}
		l.held[bucket] = own
		for w := l.queue.first; w != nil; {
			next := w.next
			if l.laneFor(w) == own {
				l.queue.remove(w)
				own.queue.push(w)
			}
			w = next
		}
	}
	own.patient = true
	return own
}

// moveTo moves waiters from the batch to the front of the queue of a held bucket's lane, if there is
// one for them. The lanes are locked.
func (b *batch) moveTo(laneFor func(*waiter) *lane) {
	stay := b.waiters[:0:0]
	for _, w := range slices.Backward(b.waiters) {
		switch to := laneFor(w); {
		case w.Left():
		case to.home == nil:
			stay = append(stay, w)
		default:
			to.queue.pushFront(w)
			b.call.Waiting.Add(-1)
		}
	}
	slices.Reverse(stay)
	b.waiters = stay
}

// answered notes that a call was answered.
func (l *lane) answered(b *batch) {
	if l.home != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.healed, l.patient = !b.patient, false
	}
}

// endHeld ends the bucket's own lane, if it is time. Both lanes are locked.
func (l *lane) endHeld() {
	if !l.healed && l.queue.first != nil {
		return
	}
	delete(l.home.held, l.bucket)
	for w := l.queue.first; w != nil; w = l.queue.first {
		l.queue.remove(w)
		to := l.home.laneFor(w)
		to.queue.push(w)
		to.start()
	}
}

// serveHeld sends batch after batch of a held bucket, each when it may be patient.
func (l *lane) serveHeld() {
	defer l.combiner.Running.Done()
	var b batch
	for more := true; more; {
		l.patience <- struct{}{}
		if more = l.gather(&b); more {
			l.send(&b)
		}
		<-l.patience
	}
}

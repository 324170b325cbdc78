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
	home := l
	if l.home != nil {
		home = l.home
	}
	buckets, all := l.heldBuckets(b, err)
	for _, bucket := range buckets {
		home.holdBucket(bucket)
	}
	for w := home.queue.first; w != nil; {
		next := w.next
		if own := home.laneFor(w); own != home {
			home.queue.remove(w)
			own.queue.push(w)
		}
		w = next
	}
	waiters, moved := b.waiters, false
	b.waiters = nil
	for _, w := range slices.Backward(waiters) {
		bucket, held := firstOf(w, buckets)
		if all {
			bucket, held = buckets[0], true
		}
		switch {
		case w.Left():
		case !held:
			b.waiters = append(b.waiters, w)
		default:
			home.held[bucket].queue.pushFront(w)
			b.call.Waiting.Add(-1)
			moved = true
		}
	}
	slices.Reverse(b.waiters)
	for bucket, own := range home.held {
		if own.start(); !own.serving { // nobody waits for it
			delete(home.held, bucket)
		}
	}
	return moved || len(b.waiters) == 0
}

// heldBuckets are the buckets of which the error of the batch says that they are held. If it names none,
// all of a batch that is about one bucket wait for that, and one group for the zero Bucket: no other
// group need wait for the same.
func (l *lane) heldBuckets(b *batch, err error) (buckets []rate.Bucket, all bool) {
	var named *rate.HeldError
	switch {
	case errors.As(err, &named):
		return named.Held, false
	case l.home != nil:
		return []rate.Bucket{l.bucket}, true
	case !b.isOne():
		return nil, false
	case isGroup(b.waiters[0].Request):
		return []rate.Bucket{{}}, true
	}
	return []rate.Bucket{b.requests[0].Bucket()}, true
}

// firstOf returns the first of the unit's buckets that is one of these.
func firstOf(w *waiter, buckets []rate.Bucket) (bucket rate.Bucket, is bool) {
	for i := range w.Request {
		if bucket = w.Request[i].Bucket(); slices.Contains(buckets, bucket) {
			return bucket, true
		}
	}
	return rate.Bucket{}, false
}

// holdBucket makes the bucket's own lane, unless there is one. The lane is locked.
func (l *lane) holdBucket(bucket rate.Bucket) {
	if l.held == nil {
		l.held = make(map[rate.Bucket]*lane)
	}
	if l.held[bucket] == nil {
		l.held[bucket] = &lane{combiner: l.combiner, mu: l.mu, patience: l.patience, heldLane: heldLane{home: l, bucket: bucket}}
	}
	l.held[bucket].patient = true
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
	for more := true; more; {
		l.patience <- struct{}{}
		if more = l.gather(&l.batch); more {
			l.send(&l.batch)
		}
		<-l.patience
	}
}

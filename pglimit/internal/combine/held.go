package combine

import "github.com/pglimit/ratelimit/pglimit/rate"

// heldLane has the fields that only the lane of a held bucket uses. A bucket is held while somebody
// else holds its row locked.
//
// Ordinary calls are impatient, so that a held bucket delays the others of its lane only
// for a moment. Then the callers of the held bucket, also later ones, wait in the bucket's own
// lane, whose call waits for the row as long as it takes.
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

// hold moves the callers of a batch for one held bucket to the front of the bucket's own lane. It
// returns false, and moves nobody, if the limiter has ended.
func (l *lane) hold(b *batch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.combiner.Aborted() {
		return false
	}
	own, bucket := l, b.requests[0].Bucket()
	if l.home == nil {
		own = &lane{combiner: l.combiner, mu: l.mu, heldLane: heldLane{home: l, bucket: bucket}}
		for w := l.queue.first; w != nil; {
			next := w.next
			if w.Request.Bucket() == bucket {
				l.queue.remove(w)
				own.queue.push(w)
			}
			w = next
		}
	}
	own.patient = true
	for i := len(b.waiters) - 1; i >= 0; i-- {
		if w := b.waiters[i]; !w.Left() {
			own.queue.pushFront(w)
			b.flight.Waiting.Add(-1)
		}
	}
	if own != l && own.queue.first != nil {
		if l.held == nil {
			l.held = make(map[rate.Bucket]*lane)
		}
		l.held[bucket] = own
		own.start()
	}
	return true
}

// answered notes that a call was answered.
func (l *lane) answered() {
	if l.home != nil {
		l.healed, l.patient = !l.patient, false
	}
}

// goHome ends the bucket's own lane, if it is time. Both lanes are locked.
func (l *lane) goHome() {
	if l.healed {
		for w := l.queue.first; w != nil; w = l.queue.first {
			l.queue.remove(w)
			l.home.queue.push(w)
		}
		l.home.start()
	}
	if l.queue.first == nil {
		delete(l.home.held, l.bucket)
	}
}

// serveHeld sends batch after batch of a held bucket, each when it may be patient.
func (l *lane) serveHeld() {
	c := l.combiner
	defer c.Running.Done()
	var b batch
	for more := true; more; {
		c.Patience <- struct{}{}
		if more = l.gather(&b); more {
			l.send(&b)
		}
		<-c.Patience
	}
}

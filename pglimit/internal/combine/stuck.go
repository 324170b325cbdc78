package combine

// maxPatient is how many calls of a Limiter may wait for rows that others hold locked, each
// on a connection of its own. The callers of other stuck keys wait until it is their turn.
const maxPatient = 2

// alone is what only the lane of a stuck key has: one that somebody else holds locked.
//
// Ordinary calls are impatient, so that a locked row delays the other keys of its lane by a
// moment only. Then the callers of the locked key, and all who come later, wait in a lane of
// the key's own, whose call waits for the row as long as it takes.
//
// The key goes back to its ordinary lane, home, when nobody waits for it or an impatient
// call was answered. An answer to a patient call does not tell whether the next one would
// have to wait again. And if keys stayed for as long as somebody waits, many that were stuck
// at once would keep each other from being combined long after the locks are gone.
type alone struct {
	home    *lane // nil in an ordinary lane
	key     string
	patient bool // the next call waits for the row
	healed  bool // an impatient call was answered
}

// stick moves the callers of a batch for one key, which is locked, to the key's own lane,
// before all who came later. It does not if the limiter has ended.
func (l *lane) stick(b *batch) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aborted {
		return false
	}
	own, key := l, b.requests[0].Key
	if l.home == nil {
		own = &lane{combiner: l.combiner, mu: l.mu, alone: alone{home: l, key: key}}
		for w := l.queue.first; w != nil; {
			next := w.next
			if w.Request.Key == key {
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
			b.flight.waiting.Add(-1)
		}
	}
	if own != l && own.queue.first != nil {
		if l.stuck == nil {
			l.stuck = make(map[string]*lane)
		}
		l.stuck[key] = own
		own.start()
	}
	return true
}

// unstick notes that a call was answered.
func (l *lane) unstick() {
	if l.home != nil {
		l.healed, l.patient = !l.patient, false
	}
}

// goHome ends the key's own lane, if it is time. Both lanes are locked.
func (l *lane) goHome() {
	if l.healed {
		for w := l.queue.first; w != nil; w = l.queue.first {
			l.queue.remove(w)
			l.home.queue.push(w)
		}
		l.home.start()
	}
	if l.queue.first == nil {
		delete(l.home.stuck, l.key)
	}
}

// serveAlone sends batch after batch of a stuck key, each when it is its turn.
func (l *lane) serveAlone() {
	c := l.combiner
	defer c.running.Done()
	var b batch
	for more := true; more; {
		c.patience <- struct{}{}
		if more = l.gather(&b); more {
			l.send(&b)
		}
		<-c.patience
	}
}

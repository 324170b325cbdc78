package group

import (
	"errors"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Ordinary calls are impatient, so that a held row delays the other groups only for a moment.
// Groups for that row are put aside. The first of them waits for the row as long as it takes; when
// it is answered, the others go back to the queue.

// holds says whether one of the group's rows is known to be held. The lane is locked.
func (l *Lane) holds(group []rate.Request) (rate.Bucket, bool) {
	if len(l.held) == 0 {
		return rate.Bucket{}, false
	}
	for i := range group {
		if _, held := l.held[group[i].Bucket()]; held {
			return group[i].Bucket(), true
		}
	}
	return rate.Bucket{}, false
}

// putAside puts waiters aside that wait for a row which somebody holds, if the error says so, and
// returns the others. If the error does not say which row, only a group that was asked about alone
// is put aside, under the zero Bucket.
func (l *Lane) putAside(f *flight.Flight, waiters []*waiter, err error) (rest []*waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !errors.Is(err, rate.ErrLocked) || l.Aborted() {
		return waiters
	}
	var named *rate.HeldError
	if !errors.As(err, &named) {
		if len(waiters) > 1 {
			return waiters
		}
		named = &rate.HeldError{Held: []rate.Bucket{{}}}
	}
	for _, bucket := range named.Held {
		if _, known := l.held[bucket]; !known {
			l.held[bucket] = nil
			l.Running.Go(func() { l.serveHeld(bucket) })
		}
	}
	for _, w := range waiters {
		bucket, held := l.holds(w.Request)
		if !held && len(named.Held) == 1 && named.Held[0] == bucket {
			held = true // the zero Bucket
		}
		if !held {
			rest = append(rest, w)
			continue
		}
		if w.flight = nil; !w.Left() {
			f.Waiting.Add(-1)
		}
		l.waitFor(bucket, w)
	}
	return rest
}

// serveHeld sends the groups that wait for a row, one by one, until one is answered or nobody is
// left. Each call waits for the row as long as it takes. Between calls, those for other rows have
// their turn.
func (l *Lane) serveHeld(bucket rate.Bucket) {
	for more := true; more; {
		l.Patience <- struct{}{}
		more = l.askHeld(bucket)
		<-l.Patience
	}
}

// askHeld sends the next group that waits for the row. It returns false if the row is no longer known to
// be held: the group was answered, or there is none.
func (l *Lane) askHeld(bucket rate.Bucket) bool {
	f, waiters := l.nextHeld(bucket)
	if f == nil {
		return false
	}
	defer f.Land()
	decisions, err := l.calls.Send(f.Ctx, [][]rate.Request{waiters[0].Request})
	if err == nil {
		l.tell(f, waiters, decisions)
		l.release(bucket)
		return false
	}
	if lost := l.fail(f, waiters, l.Blame(err)); !errors.Is(err, rate.ErrNothingTaken) {
		l.Stats.Lost.Add(lost)
	}
	return true
}

// waitFor adds the waiter to those that wait for the held row. The lane is locked. Those who have
// left are dropped each time the list would grow, so that they are not many more than once waited together.
func (l *Lane) waitFor(bucket rate.Bucket, w *waiter) {
	waiters := l.held[bucket]
	if len(waiters) == cap(waiters) {
		waiters = slices.DeleteFunc(waiters, (*waiter).Left)
		waiters = slices.Grow(waiters, len(waiters)+1)
	}
	l.held[bucket] = append(waiters, w)
}

// nextHeld takes the next group that waits for the row. If there is none, the row is no longer
// known to be held.
func (l *Lane) nextHeld(bucket rate.Bucket) (*flight.Flight, []*waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for waiters := l.held[bucket]; len(waiters) > 0; waiters = l.held[bucket] {
		if l.held[bucket] = waiters[1:]; !waiters[0].Left() {
			return l.takeOff(waiters[:1]), waiters[:1]
		}
	}
	delete(l.held, bucket)
	return nil, nil
}

// release puts the groups that wait for the row at the front of the queue.
func (l *Lane) release(bucket rate.Bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.held[bucket], l.queue...)
	delete(l.held, bucket)
	l.start()
}

package pglimit

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
)

// door of a bucket: behind it callers ask Postgres for places. A place of somebody who gave up is
// lost to all if it is given back while, or after, another one is reserved behind it. So while there
// are empty places the door is shut: who comes takes one of them, or waits. When those who had gone
// in have their answers, the places that are empty still are given back, and the door opens.
type door struct {
	asking int           // callers behind the door
	shut   bool          // who comes has to wait
	before []*knocking   // callers who wait at the door, in the order in which they came
	empty  []*emptyPlace // of all lines of the bucket, by due; who comes takes none that is overdue: its tokens may be there for others
	giving bool          // a call under way gives places back
}

// emptyPlace is a reservation of somebody who gave up.
type emptyPlace struct {
	place
	request Request         // as in the line
	ctx     context.Context // of who gave up, without its end
	gone    chan struct{}   // closed when somebody has taken it, or it is given back
}

// knocking is a caller who waits at the door.
type knocking struct {
	request Request
	latest  time.Time     // when the tokens must be due
	answer  chan *sleeper // has an element if there is a place; it is nil if the caller is let in
}

// mayBeOverdue is how late, by the database's clock, the tokens of somebody who left may be used by
// somebody who asked at about the same time. A call that waited for a row for that long, but no longer,
// is dated by its beginning, too.
const mayBeOverdue = 10 * time.Millisecond

func byDue(a, b *emptyPlace) int { return a.due.Compare(b.due) }

// refundCall gives places back, of several buckets.
type refundCall struct {
	refunds []Refund
	done    chan struct{}
}

// come puts the caller into a line, at an empty place that is due in time. If there is none, own is
// nil: the caller is to ask Postgres, and then to tell answered. The wait at the door is a part of
// r.Ahead.
func (s *sleepers) come(ctx context.Context, r *Request) (own *sleeper, d Decision, err error) {
	k := s.knock(*r)
	if k == nil {
		return nil, Decision{}, nil
	}
	select {
	case own = <-k.answer:
	case <-ctx.Done():
		own, err = s.turnAway(k), ctx.Err()
	case <-s.ended.Done():
		own, err = s.turnAway(k), ErrClosed
	}
	if own != nil {
		return own, own.first, nil
	}
	r.Ahead = max(0, time.Until(k.latest)).Truncate(time.Millisecond) // as longestWait does
	return nil, Decision{}, err
}

// knock at the door. If it is open, k is nil, and the caller goes in.
func (s *sleepers) knock(r Request) (k *knocking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.doorOf(r)
	if !d.shut {
		d.asking++
		return nil
	}
	k = &knocking{r, time.Now().Add(r.Ahead), make(chan *sleeper, 1)}
	if s.place(d, k) {
		s.turn(r, d)
	} else {
		d.before = append(d.before, k)
	}
	return k
}

// turnAway somebody who waits no longer. own is nil, unless there was a place at the same moment.
func (s *sleepers) turnAway(k *knocking) (own *sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.doorOf(k.request)
	select {
	case own = <-k.answer:
		if own == nil { // it was let in
			d.asking--
		}
	default:
		d.before = slices.DeleteFunc(d.before, func(other *knocking) bool { return other == k })
	}
	s.turn(k.request, d)
	return own
}

// place gives the caller the first empty place that is due in time, and returns whether there is one.
func (s *sleepers) place(d *door, k *knocking) bool {
	line, now := inLine(k.request), time.Now()
	i := slices.IndexFunc(d.empty, func(e *emptyPlace) bool {
		return e.request == line && e.due.After(now) && !e.due.After(k.latest)
	})
	if i < 0 {
		return false
	}
	e := d.empty[i]
	d.empty = slices.Delete(d.empty, i, i+1)
	close(e.gone)
	s.stats.PassedOn.Add(e.decision.Granted)
	k.answer <- s.stand(line, e.place)
	return true
}

// fill the empty places with callers at the door, who come first.
func (s *sleepers) fill(d *door) {
	if len(d.empty) > 0 {
		d.before = slices.DeleteFunc(d.before, func(k *knocking) bool { return s.place(d, k) })
	}
}

// letIn all who wait at the door.
func (d *door) letIn() {
	for _, k := range d.before {
		k.answer <- nil
	}
	d.asking, d.before = d.asking+len(d.before), nil
}

func (s *sleepers) doorOf(r Request) *door {
	d := s.doors[r.Bucket()]
	if d == nil {
		d = &door{}
		s.doors[r.Bucket()] = d
	}
	return d
}

// answered says that the caller has asked. If Postgres has granted the tokens, the caller stands in
// line from now on, at an earlier empty place if there is one. That may have been due before Postgres
// decided, but not by more than mayBeOverdue.
func (s *sleepers) answered(r Request, decision Decision) (own *sleeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, line := s.doorOf(r), inLine(r)
	d.asking--
	if decision.Allowed && decision.Source == FromDatabase {
		p := placeOf(r, decision)
		for _, e := range d.empty {
			overdue := decision.At.Sub(e.decision.At.Add(e.decision.Delay))
			if e.request == line && e.due.Before(p.due) && overdue <= mayBeOverdue {
				e.place, p = p, e.place
			}
		}
		slices.SortStableFunc(d.empty, byDue)
		own = s.stand(line, p)
	}
	s.turn(r, d)
	return own
}

// giveUp leaves the line, with its last place, and returns when somebody else has that place or it
// is given back, but does not wait for long.
func (s *sleepers) giveUp(ctx context.Context, r Request, own *sleeper) {
	s.mu.Lock()
	s.remove(inLine(r), own, true)
	if own.decision.Source == FromFallback { // Postgres has not granted it
		s.mu.Unlock()
		return
	}
	e := &emptyPlace{place: own.place, request: inLine(r), ctx: context.WithoutCancel(ctx), gone: make(chan struct{})}
	d := s.doorOf(r)
	d.shut = true
	d.empty = append(d.empty, e)
	slices.SortStableFunc(d.empty, byDue)
	s.turn(r, d)
	s.mu.Unlock()
	select {
	case <-e.gone:
	case <-time.After(wait.SettleTime): // somebody who is asking has no answer yet: it is given back after that
	}
}

// turn the door, if it is time. The sleepers are locked.
func (s *sleepers) turn(r Request, d *door) {
	s.fill(d)
	switch {
	case d.giving:
	case len(d.empty) == 0:
		d.shut = false
		if d.letIn(); d.asking == 0 {
			delete(s.doors, r.Bucket())
		}
	case d.asking == 0:
		d.giving = true
		s.Stay(1)
		go s.clear(r, d, d.empty)
		d.empty = nil
	}
}

// clear gives empty places back.
func (s *sleepers) clear(r Request, d *door, empty []*emptyPlace) {
	defer s.Leave(1)
	s.mu.Lock()
	b, first := s.next, s.next == nil
	if first {
		b = &refundCall{done: make(chan struct{})}
		s.next = b
	}
	for _, e := range empty {
		b.refunds = append(b.refunds, refundOf(e.request, e.decision, e.decision.Granted))
	}
	s.mu.Unlock()
	if first {
		s.send(empty[0].ctx, b)
	} else {
		<-b.done
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range empty {
		close(e.gone)
	}
	d.giving = false
	if s.fill(d); len(d.empty) > 0 {
		// Others have left meanwhile. Nobody waits at the door for more than one call, even though what is
		// empty now may be lost by that.
		d.letIn()
	}
	s.turn(r, d)
}

// send makes the call. One call at a time does so, and what is to be given back meanwhile, of other
// buckets, shares the next one.
func (s *sleepers) send(ctx context.Context, b *refundCall) {
	s.call <- struct{}{}
	defer func() { <-s.call }()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	// The last place first: nothing may be reserved behind a place that is given back.
	slices.SortStableFunc(b.refunds, func(a, b Refund) int { return b.At.Add(b.Delay).Compare(a.At.Add(a.Delay)) })
	s.stats.GiveBack(ctx, b.refunds, s.giveBack)
	close(b.done)
}

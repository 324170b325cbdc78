package pglimit

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// sleepers are the callers of Wait, each until its end. Those whose tokens are reserved stand in
// lines, one for each sort of request. Who gives up leaves the last place of the line, and the
// others behind move up: a place that is given back in the middle would be lost to all, because
// what others have reserved does not move.
type sleepers struct {
	*wait.Crowd
	ended    context.Context // by Close
	end      context.CancelFunc
	giveBack func(ctx context.Context, refunds []Refund) error
	stats    flight.Stats

	mu    sync.Mutex
	lines map[Request][]*sleeper // by what they asked for, without Ahead; sorted by due
	doors map[rate.Bucket]*door
	next  *refundCall   // what the next call gives back, if anything
	call  chan struct{} // has an element while a call is under way
}

// sleeper is a caller whose tokens are not due yet.
type sleeper struct {
	place
	first Decision      // by its first place
	moved chan struct{} // has an element if it has another place since
}

// place is a reservation.
type place struct {
	decision Decision
	due      time.Time
}

func placeOf(r Request, d Decision) place {
	d.Limiter, d.Key, d.Limit = r.Limiter, r.Key, r.Limit
	return place{d, time.Now().Add(bucket.AtMost(d.Delay))}
}

// inLine is the request by which its line is known: how long one may wait does not matter there.
func inLine(r Request) Request {
	r.Ahead = 0
	return r
}

func newSleepers(giveBack func(ctx context.Context, refunds []Refund) error) *sleepers {
	s := &sleepers{
		Crowd:    wait.NewCrowd(math.MaxInt), // how many they are is bounded by how long they may wait, and by the rate
		giveBack: giveBack,
		lines:    make(map[Request][]*sleeper), doors: make(map[rate.Bucket]*door), call: make(chan struct{}, 1),
	}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// Close wakes all sleepers, and waits until they have given back what they had reserved.
func (s *sleepers) Close(ctx context.Context) error {
	s.end()
	return s.Crowd.Close(ctx)
}

// join the line.
func (s *sleepers) join(r Request, d Decision) *sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stand(inLine(r), placeOf(r, d))
}

// stand in the line of a request without Ahead. The sleepers are locked.
func (s *sleepers) stand(r Request, p place) *sleeper {
	own := &sleeper{p, p.decision, make(chan struct{}, 1)}
	line := s.lines[r]
	at := len(line)
	for at > 0 && line[at-1].due.After(p.due) {
		at--
	}
	s.lines[r] = slices.Insert(line, at, own)
	return own
}

// asleep is how many stand in lines.
func (s *sleepers) asleep() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.lines {
		n += int64(len(line))
	}
	return n
}

// sleep until the sleeper's place is due. The error is ErrWaitTooLong if that is behind the deadline.
func (s *sleepers) sleep(ctx context.Context, own *sleeper) error {
	for {
		s.mu.Lock()
		due := own.due
		s.mu.Unlock()
		left := time.Until(due)
		deadline, ends := ctx.Deadline()
		switch {
		case left <= 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case ends && due.After(deadline): // the round trip took its time
			return tooLong(left, time.Until(deadline))
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-own.moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended.Done():
			return ErrClosed
		}
		timer.Stop()
	}
}

// leave the line with the own place.
func (s *sleepers) leave(r Request, own *sleeper) Decision {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(inLine(r), own, false)
	return own.decision
}

// remove the sleeper from its line. If it gives up, the others move up first, and it has the last
// place. The sleepers are locked.
func (s *sleepers) remove(r Request, own *sleeper, givesUp bool) {
	line := s.lines[r]
	at := slices.Index(line, own)
	if givesUp {
		for _, next := range line[at+1:] {
			own.place, next.place = next.place, own.place
			select {
			case next.moved <- struct{}{}:
			default: // it has not seen an earlier move yet
			}
		}
	}
	if line = slices.Delete(line, at, at+1); len(line) == 0 {
		delete(s.lines, r)
	} else {
		s.lines[r] = line
	}
}

// Package queue has the callers who wait for tokens that are reserved for them.
package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	arithmetic "github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrTooLong is ErrWaitTooLong of package pglimit.
var ErrTooLong = errors.New("pglimit: the wait would be too long")

// TooLong is the error of a caller who would wait so long, and may wait so long at most.
func TooLong(wait, most time.Duration) error {
	return fmt.Errorf("%w: the tokens are due in %v, and the context's deadline, Config.MaxWait or the caller allows %v", ErrTooLong, wait, most)
}

// Queue has the callers of Wait, each until its end. Those whose tokens are reserved stand in
// lines, one for each sort of request. A caller who gives up leaves the last place of the line, and the
// others behind move up: a place that is given back in the middle would be lost to all, because
// what others have reserved does not move.
type Queue struct {
	*wait.Callers
	Stats wait.Stats // of tokens whose callers have left

	ended    context.Context // by Close
	end      context.CancelFunc
	giveBack func(ctx context.Context, refunds []rate.Refund) error

	mu      sync.Mutex
	lines   map[rate.Request][]*Waiter // by what they asked for, without Ahead; sorted by due
	buckets map[rate.Bucket]*bucket
	next    *refundCall   // what the next call gives back, if anything
	call    chan struct{} // has an element while a call is under way
}

// Waiter is a caller whose tokens are reserved and not due yet.
type Waiter struct {
	place
	First rate.Decision // by its first place
	moved chan struct{} // has an element if it has another place since
}

// place is a reservation.
type place struct {
	decision rate.Decision
	due      time.Time
}

func placeOf(r rate.Request, d rate.Decision) place {
	d.Limiter, d.Key, d.Limit, d.Rule = r.Limiter, r.Key, r.Limit, r.Rule
	return place{d, time.Now().Add(arithmetic.AtMost(d.Delay))}
}

// inLine is the request by which its line is known: how long a caller may wait does not matter there.
func inLine(r rate.Request) rate.Request {
	r.Ahead = 0
	return r
}

// New is an empty Queue. giveBack returns tokens to their buckets.
func New(giveBack func(ctx context.Context, refunds []rate.Refund) error) *Queue {
	q := &Queue{
		Callers:  wait.NewCallers(math.MaxInt), // how many they are is bounded by how long they may wait, and by the rate
		giveBack: giveBack,
		lines:    make(map[rate.Request][]*Waiter), buckets: make(map[rate.Bucket]*bucket), call: make(chan struct{}, 1),
	}
	q.ended, q.end = context.WithCancel(context.Background())
	return q
}

// Close wakes all callers with ErrClosed, and waits until they have given back what they had reserved.
func (q *Queue) Close(ctx context.Context) error {
	q.end()
	return q.Callers.Close(ctx)
}

// Add a caller whose tokens nobody else can have.
func (q *Queue) Add(r rate.Request, d rate.Decision) *Waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(inLine(r), placeOf(r, d))
}

// add to the line of a request without Ahead. The queue is locked.
func (q *Queue) add(r rate.Request, p place) *Waiter {
	own := &Waiter{p, p.decision, make(chan struct{}, 1)}
	line := q.lines[r]
	at := len(line)
	for at > 0 && line[at-1].due.After(p.due) {
		at--
	}
	q.lines[r] = slices.Insert(line, at, own)
	return own
}

// Len is how many callers stand in lines.
func (q *Queue) Len() (n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, line := range q.lines {
		n += int64(len(line))
	}
	return n
}

// Wait until the waiter's tokens are due. The error is ErrTooLong if that is behind the deadline.
func (q *Queue) Wait(ctx context.Context, own *Waiter) error {
	for {
		q.mu.Lock()
		due := own.due
		q.mu.Unlock()
		left := time.Until(due)
		deadline, ends := ctx.Deadline()
		switch {
		case left <= 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case ends && due.After(deadline): // the round trip took its time
			return TooLong(left, time.Until(deadline))
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-own.moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-q.ended.Done():
			return rate.ErrClosed
		}
		timer.Stop()
	}
}

// Done takes the waiter, whose tokens are due, out of its line. It returns the decision by its last place.
func (q *Queue) Done(r rate.Request, own *Waiter) rate.Decision {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(inLine(r), own, false)
	return own.decision
}

// remove the waiter from its line. If it gives up, the others move up first, and it has the last
// place. The queue is locked.
func (q *Queue) remove(r rate.Request, own *Waiter, givesUp bool) {
	line := q.lines[r]
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
		delete(q.lines, r)
	} else {
		q.lines[r] = line
	}
}

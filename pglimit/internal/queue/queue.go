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
// lines, one for each sort of request or group. A caller who gives up leaves the last place of the line, and the
// others behind move up: a place that is given back in the middle would be lost to all, because
// what others have reserved does not move.
type Queue struct {
	*wait.Callers
	Stats wait.Stats // of tokens whose callers have left

	ended    context.Context // by Close
	end      context.CancelFunc
	giveBack func(ctx context.Context, refunds []rate.Refund) error

	mu      sync.Mutex
	lines   map[line][]*Waiter // by what they asked for; sorted by due
	buckets map[door]*bucket
	next    *refundCall   // what the next call gives back, if anything
	call    chan struct{} // has an element while a call is under way
}

// Waiter is a caller whose tokens are reserved and not due yet.
type Waiter struct {
	place
	First []rate.Decision // by its first place
	moved chan struct{}   // has an element if it has another place since
}

// New is an empty Queue. giveBack returns tokens to their buckets.
func New(giveBack func(ctx context.Context, refunds []rate.Refund) error) *Queue {
	q := &Queue{
		Callers:  wait.NewCallers(math.MaxInt), // how many reserve is bounded by how long they may wait, and by the rate
		giveBack: giveBack,
		lines:    make(map[line][]*Waiter), buckets: make(map[door]*bucket), call: make(chan struct{}, 1),
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
func (q *Queue) Add(requests []rate.Request, decisions []rate.Decision) *Waiter {
	u, p := unitOf(requests), placeOf(requests, decisions)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(u, p)
}

// add to the unit's line. The queue is locked.
func (q *Queue) add(u unit, p place) *Waiter {
	own := &Waiter{p, p.decisions, make(chan struct{}, 1)}
	line := q.lines[u.line]
	at := len(line)
	for at > 0 && line[at-1].due.After(p.due) {
		at--
	}
	q.lines[u.line] = slices.Insert(line, at, own)
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
		if err := q.sleep(ctx, left, own.moved); err != nil {
			return err
		}
	}
}

// Sleep for so long. The error is that of ctx, or ErrClosed.
func (q *Queue) Sleep(ctx context.Context, d time.Duration) error { return q.sleep(ctx, d, nil) }

func (q *Queue) sleep(ctx context.Context, d time.Duration, moved <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-moved:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.ended.Done():
		return rate.ErrClosed
	}
	return nil
}

// Done takes the waiter, whose tokens are due, out of its line. It returns the decisions by its last place.
func (q *Queue) Done(requests []rate.Request, own *Waiter) []rate.Decision {
	u := unitOf(requests)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(u, own, false)
	return own.decisions
}

// remove the waiter from its line. If it gives up, the others move up first, and it has the last
// place. The queue is locked.
func (q *Queue) remove(u unit, own *Waiter, givesUp bool) {
	line := q.lines[u.line]
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
		delete(q.lines, u.line)
	} else {
		q.lines[u.line] = line
	}
}

package pglimit

import (
	"context"
	"hash/maphash"
	"sync"
	"time"
)

const (
	// defaultLanes is as many connections as combining needs to keep Postgres busy
	// while other answers are on their way.
	defaultLanes = 2

	maxLanes = 1024

	// maxBatch bounds how many callers one call answers, and so how long one that comes
	// meanwhile has to wait.
	maxBatch = 1024

	// settleTime is how long a call goes on for which nobody waits any more: long enough
	// to learn what it took and give that back. Then its connection is given up.
	settleTime = time.Second
)

// combiner lets requests that arrive while others are under way go out together.
//
// Keys are spread over a few lanes. A lane has one call under way at most: a request
// that finds its lane idle goes out at once, the others form a queue, and when the call
// returns, the queue is the next one. So no request waits for a timer, callers are
// served in order of arrival, and a process never contends with itself for a row.
// The busier it gets, the larger the batches: the cost of a round trip, and of a flush
// to disk in Durable, is shared by all who wait.
type combiner struct {
	limiter *Limiter
	send    take
	seed    maphash.Seed
	lanes   []lane
	running sync.WaitGroup
	waiters sync.Pool // of *waiter that are not in use

	patience chan struct{}   // has room for each call that may wait for a locked row
	aborted  context.Context // ends when nobody is to wait any more
	abort    context.CancelFunc
}

func newCombiner(l *Limiter, send take) *combiner {
	c := &combiner{
		limiter: l, send: send, seed: maphash.MakeSeed(),
		lanes:    make([]lane, orDefault(l.config.Lanes, defaultLanes)),
		patience: make(chan struct{}, maxPatient),
	}
	c.aborted, c.abort = context.WithCancel(context.Background())
	for i := range c.lanes {
		c.lanes[i].combiner, c.lanes[i].mu = c, new(sync.Mutex)
	}
	return c
}

func orDefault[T int | time.Duration](value, otherwise T) T {
	if value == 0 {
		return otherwise
	}
	return value
}

// decide waits for the answer in the caller's goroutine; the call is made in the
// lane's, so that a caller whose context ends can leave while the call goes on.
func (c *combiner) decide(ctx context.Context, request Request) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	waiting := &c.limiter.waiting
	defer waiting.leave()
	if err := waiting.enter(); err != nil {
		return Decision{}, err
	}
	w := c.newWaiter(ctx, request)
	l := &c.lanes[maphash.String(c.seed, request.Key)%uint64(len(c.lanes))]
	if err := l.join(w); err != nil {
		c.recycle(w)
		return Decision{}, err
	}
	if done := ctx.Done(); done == nil {
		<-w.ready
	} else {
		select {
		case <-w.ready:
		case <-done:
			if l.leave(w) {
				return Decision{}, ctx.Err()
			}
			<-w.ready // the answer was sooner
		}
	}
	decision, err := w.decision, w.err
	c.recycle(w)
	return decision, err
}

// close lets those who wait have their answers, as long as ctx lasts, and returns when
// no goroutine is left. The error is that of ctx, if somebody did not get one.
func (c *combiner) close(ctx context.Context) error {
	for i := range c.lanes {
		c.lanes[i].close()
	}
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	aborted := false
	for i := range c.lanes {
		aborted = c.lanes[i].abort() || aborted
	}
	c.abort()
	<-done
	if aborted {
		return ctx.Err()
	}
	return nil
}

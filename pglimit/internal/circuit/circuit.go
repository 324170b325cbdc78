// Package circuit spares callers, and a server that does not answer, each other.
package circuit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// failures in a row open the circuit. One may be a connection that the server has closed
	// meanwhile.
	failures = 2

	// maxPause is how long nobody is let through after a failure, at most.
	maxPause = 200 * time.Millisecond

	// minSilence: no server is doubted sooner, and has minSignTime for a sign of life: to
	// connect to a busy one takes some 100 ms.
	minSilence  = 50 * time.Millisecond
	minSignTime = 200 * time.Millisecond
)

// ErrOpen: Postgres was not asked, because it has just not answered others.
var ErrOpen = fmt.Errorf("%w: it was not asked, because it has just not answered others", rate.ErrUnavailable)

// errNoAnswer is the outcome of a call that ended for a reason of its caller's.
var errNoAnswer = errors.New("nobody waited for the answer")

// Breaker is closed while Postgres answers. It opens when Postgres refused several calls in a
// row, or when it was silent: a call had no answer for half of the time that it may take,
// nobody else had one meanwhile, and in the other half a new connection got no sign of life.
// (A call alone proves nothing: it may wait for a row that somebody holds locked.)
//
// While it is open, calls under way are given up, and new ones fail at once. After a pause one
// caller at a time asks for a sign of life; the first one that gets it closes the circuit.
//
// No Breaker (nil) is always closed.
type Breaker struct {
	silence  time.Duration // after which a server is doubted
	signTime time.Duration // how long a sign of life may take then
	sign     func(context.Context) error
	hear     func(open bool, why error)
	states   *gobreaker.TwoStepCircuitBreaker[struct{}]
	open     atomic.Bool
	answers  atomic.Int64 // how many calls had one
	asking   atomic.Bool  // for a sign of life, because of a doubt

	mu     sync.Mutex
	calls  context.Context // ends when the circuit opens
	giveUp context.CancelFunc
	why    error // the last failure
	untold bool  // it has changed, and hear is to be called

	doubts sync.WaitGroup  // under way
	ended  context.Context // with Close
	end    context.CancelFunc
}

// New is a Breaker that is closed, for calls that may take so long. sign asks for a sign of
// life on a new connection. hear is told of changes, with the last failure.
func New(timeout time.Duration, sign func(context.Context) error, hear func(open bool, why error)) *Breaker {
	b := &Breaker{silence: max(timeout/2, minSilence), signTime: max(timeout/2, minSignTime), sign: sign, hear: hear}
	b.calls, b.giveUp = context.WithCancel(context.Background())
	b.ended, b.end = context.WithCancel(context.Background())
	b.states = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       min(maxPause, timeout),
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoAnswer) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.change(from, to) },
	})
	return b
}

// Open says whether callers are turned away.
func (b *Breaker) Open() bool { return b != nil && b.open.Load() }

// Admit a caller, who may have to ping first: to ask for a sign of life.
func (b *Breaker) Admit(ctx context.Context, ping func(context.Context) error) error {
	if !b.Open() {
		return nil
	}
	done, err := b.states.Allow()
	if err != nil {
		return ErrOpen
	}
	if !b.Open() { // another caller has just had one
		b.report(done, errNoAnswer)
		return nil
	}
	err = ping(ctx)
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		b.report(done, errNoAnswer)
	} else {
		b.report(done, err)
	}
	return err
}

// Call Postgres, and learn from how that ends, and from how long it takes.
func (b *Breaker) Call(ctx context.Context, call func(context.Context) error) error {
	if b == nil {
		return call(ctx)
	}
	if b.Open() { // also after the pause, which is for Admit to end
		return ErrOpen
	}
	done, err := b.states.Allow()
	if err != nil {
		return ErrOpen
	}
	underWay := b.underWay()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(underWay, cancel)()
	defer b.watch(ctx, b.answers.Load()).Stop()

	err = call(ctx)
	givenUp := underWay.Err() != nil
	b.report(done, outcome(ctx, err))
	if err != nil && givenUp {
		return fmt.Errorf("%w: given up: %w", rate.ErrUnavailable, err)
	}
	return err
}

// outcome of a call, as far as it says something of the server. Any answer shows that it is
// alive, an error too.
func outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errNoAnswer
	case errors.Is(err, rate.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return err // the latter for a time limit of the pool's own, for connecting
	}
	return nil
}

// watch a call that has begun when so many had an answer: while it goes on, the server is
// doubted whenever nobody has had an answer for a while.
func (b *Breaker) watch(call context.Context, answers int64) *time.Timer {
	return time.AfterFunc(b.silence, func() {
		if b.answers.Load() == answers && call.Err() == nil {
			b.doubt(answers)
		}
		if call.Err() == nil {
			b.watch(call, b.answers.Load())
		}
	})
}

// doubt the server: ask for a sign of life, one call at a time. If there is none, and nobody
// has an answer meanwhile, the circuit opens.
func (b *Breaker) doubt(answers int64) {
	b.mu.Lock()
	if b.ended.Err() != nil || b.Open() || !b.asking.CompareAndSwap(false, true) {
		b.mu.Unlock()
		return
	}
	b.doubts.Add(1)
	underWay := b.calls
	b.mu.Unlock()
	defer b.doubts.Done()
	defer b.asking.Store(false)

	ctx, cancel := context.WithTimeout(b.ended, b.signTime)
	defer cancel()
	err := b.sign(ctx)
	if err == nil || b.answers.Load() != answers || underWay.Err() != nil || b.ended.Err() != nil {
		return
	}
	for range failures {
		if done, refused := b.states.Allow(); refused == nil {
			b.report(done, err)
		}
	}
}

// Close ends the doubts, and waits for them.
func (b *Breaker) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.end() // no doubt begins any more
	b.mu.Unlock()
	b.doubts.Wait()
}

func (b *Breaker) underWay() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

// report the outcome of a call, or of a ping.
func (b *Breaker) report(done func(error), err error) {
	switch {
	case err == nil:
		b.answers.Add(1)
	case !errors.Is(err, errNoAnswer):
		b.mu.Lock()
		b.why = err
		b.mu.Unlock()
	}
	done(err)

	b.mu.Lock()
	tell, open, why := b.untold, b.open.Load(), b.why
	b.untold = false
	b.mu.Unlock()
	if tell {
		b.hear(open, why)
	}
}

// change of state. The library holds its lock.
func (b *Breaker) change(from, to gobreaker.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case from == gobreaker.StateClosed:
		b.open.Store(true)
		b.giveUp()
	case to == gobreaker.StateClosed:
		b.calls, b.giveUp = context.WithCancel(context.Background())
		b.open.Store(false)
	default:
		return
	}
	b.untold = true
}

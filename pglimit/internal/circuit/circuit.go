// Package circuit fails requests at once while Postgres does not answer.
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
	// failures in a row open the circuit. A single one may only be a connection that the
	// server has closed.
	failures = 2

	// maxPause is how long at most no caller may ask for a sign of life after a failure.
	maxPause = 200 * time.Millisecond

	// minSilence: no server is doubted sooner. It then has at least minSignTime for a sign
	// of life: to connect to a busy server takes some 100 ms.
	minSilence  = 50 * time.Millisecond
	minSignTime = 200 * time.Millisecond
)

// ErrOpen: Postgres was not asked, because it has just not answered others.
var ErrOpen = fmt.Errorf("%w: it was not asked, because it has just not answered others", rate.ErrUnavailable)

// errNoAnswer is the outcome of a call that says nothing about the server: its context ended.
var errNoAnswer = errors.New("nobody waited for the answer")

// Breaker is closed while Postgres answers. It opens when Postgres refused several calls in a
// row, or when it was silent: a call had no answer for half of the time that it may take, no
// other call had one meanwhile, and a new connection got no sign of life in the other half.
// (A single call proves nothing: it may wait for a row that somebody holds locked.)
//
// When it opens, calls under way are given up, and new ones fail at once. After a pause one
// caller at a time asks for a sign of life; the first that gets it closes the circuit.
//
// A nil Breaker is always closed.
type Breaker struct {
	silence  time.Duration // after this long without an answer, the server is doubted
	signTime time.Duration // how long a sign of life may take then
	sign     func(context.Context) error
	hear     func(open bool, why error)
	states   *gobreaker.TwoStepCircuitBreaker[struct{}]
	open     atomic.Bool
	answers  atomic.Int64 // how many calls were answered
	asking   atomic.Bool  // a doubt is asking for a sign of life

	mu     sync.Mutex
	calls  context.Context // ends when the circuit opens
	giveUp context.CancelFunc
	why    error // the last failure
	untold bool  // the state has changed, and hear has not been called yet

	doubts sync.WaitGroup  // the doubts under way
	ended  context.Context // ends with Close
	end    context.CancelFunc
}

// New is a closed Breaker for calls that may take up to timeout. sign asks for a sign of life on
// a new connection. hear is told when the circuit opens or closes, with the last failure.
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

// Admit lets a caller go on, or fails it. While the circuit is open, it may have to ping first.
func (b *Breaker) Admit(ctx context.Context, ping func(context.Context) error) error {
	if !b.Open() {
		return nil
	}
	done, err := b.states.Allow()
	if err != nil {
		return ErrOpen
	}
	if !b.Open() { // another caller has just got a sign of life
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

// Call calls Postgres, and learns from the outcome and from how long it takes.
func (b *Breaker) Call(ctx context.Context, call func(context.Context) error) error {
	if b == nil {
		return call(ctx)
	}
	if b.Open() { // also after the pause, which only Admit can end
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

// outcome is what a call says about the server. Any answer, even an error, shows that it is alive.
func outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errNoAnswer
	case errors.Is(err, rate.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return err // a deadline that is not ctx's is the pool's own, for connecting
	}
	return nil
}

// watch doubts the server, while the call goes on, whenever no call has been answered for a
// while. answers is how many calls have been answered so far.
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

// doubt asks for a sign of life, unless another doubt is doing so. If there is none, and no call
// is answered meanwhile, the circuit opens.
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

// Close ends all doubts under way, and waits for them.
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

// report reports the outcome of a call or a ping, and calls hear if the state has changed.
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

// change notes a change of state. The library holds its lock.
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

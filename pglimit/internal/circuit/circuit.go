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

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// failures in a row, of calls of any key, open the circuit. One may be a connection that
	// the server has closed meanwhile.
	failures = 2

	// maxPause is how long nobody is let through after a failure, at most.
	maxPause = 200 * time.Millisecond
)

// ErrOpen: Postgres was not asked, because it has just not answered others.
var ErrOpen = fmt.Errorf("%w: it was not asked, because it has just not answered others", rate.ErrUnavailable)

var (
	errLate     = errors.New("no answer in time")
	errNoAnswer = errors.New("nobody waited for the answer") // which says nothing of the server
)

// Breaker is closed while Postgres answers. When several calls in a row found it unavailable,
// or had no answer in time, it opens: calls under way are given up, and new ones fail at once.
// After a pause one caller at a time asks for a sign of life, and the first that gets one
// closes it. No Breaker (nil) is always closed.
type Breaker struct {
	late   time.Duration // how long an answer may take; zero: any time
	hear   func(open bool, why error)
	states *gobreaker.TwoStepCircuitBreaker[struct{}]
	open   atomic.Bool

	mu     sync.Mutex
	calls  context.Context // ends when the circuit opens
	giveUp context.CancelFunc
	why    error // the last failure
	untold bool  // it has changed, and hear is to be called
}

// New is a Breaker that is closed. A call that lasts longer than late has failed, unless late
// is zero. hear is told of changes, with the last failure.
func New(late time.Duration, hear func(open bool, why error)) *Breaker {
	b := &Breaker{late: late, hear: hear}
	b.calls, b.giveUp = context.WithCancel(context.Background())
	pause := maxPause
	if late > 0 {
		pause = min(pause, late)
	}
	b.states = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       pause,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failures },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoAnswer) },
		OnStateChange: func(_ string, from, to gobreaker.State) { b.change(from, to) },
	})
	return b
}

// Open says whether callers are turned away.
func (b *Breaker) Open() bool { return b != nil && b.open.Load() }

// Admit a caller, who may have to ask for a sign of life first.
func (b *Breaker) Admit(ctx context.Context, ping func(context.Context) error) error {
	if !b.Open() {
		return nil
	}
	done, err := b.states.Allow()
	if err != nil {
		return ErrOpen
	}
	if !b.Open() { // somebody else has just had one
		b.end(done, errNoAnswer)
		return nil
	}
	err = ping(ctx)
	outcome := err
	if errors.Is(ctx.Err(), context.Canceled) && err != nil {
		outcome = errNoAnswer
	}
	b.end(done, outcome)
	return err
}

// Call Postgres, and learn from how that ends. A call that may wait for what others do, such
// as the end of their transactions, says nothing by being late.
func (b *Breaker) Call(ctx context.Context, mayWait bool, call func(context.Context) error) error {
	if b == nil {
		return call(ctx)
	}
	if b.Open() { // also after the pause: that is for Admit to end
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

	var once sync.Once
	end := func(err error) { once.Do(func() { b.end(done, err) }) }
	if b.late > 0 && !mayWait {
		defer time.AfterFunc(b.late, func() { end(errLate) }).Stop()
	}
	err = call(ctx)
	givenUp := underWay.Err() != nil
	end(outcome(ctx, mayWait, err))
	if err != nil && givenUp {
		return fmt.Errorf("%w: given up: %w", rate.ErrUnavailable, err)
	}
	return err
}

// outcome of a call, as far as it says something of the server. Whoever gets any answer has
// found it alive.
func outcome(ctx context.Context, mayWait bool, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), wait.ErrGivenUp) && !mayWait:
		return errLate
	case ctx.Err() != nil:
		return errNoAnswer
	case errors.Is(err, rate.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return err // the latter for a time limit of the pool's own, for connecting
	}
	return nil
}

func (b *Breaker) underWay() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

// end of a call, or of a ping.
func (b *Breaker) end(done func(error), err error) {
	if err != nil && !errors.Is(err, errNoAnswer) {
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

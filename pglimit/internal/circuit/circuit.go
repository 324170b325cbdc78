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
	// failures in a row, of calls of any key, open the circuit. One may be a connection that
	// the server has closed meanwhile.
	failures = 2

	// maxPause is how long nobody is let through after a failure, at most.
	maxPause = 200 * time.Millisecond

	// patience is the least time after which a call is late: longer than the 20 ms for which an
	// impatient one waits for a locked row.
	patience = 100 * time.Millisecond
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

	answers  atomic.Int64    // calls and pings that were answered
	doubting bool            // one call in doubt at a time
	doubts   sync.WaitGroup  // that goroutine
	ended    context.Context // since Close
	end      context.CancelFunc
}

// New is a Breaker that is closed. A call that lasts longer than late (and than patience) has
// failed, unless late is zero. hear is told of changes, with the last failure.
func New(late time.Duration, hear func(open bool, why error)) *Breaker {
	b := &Breaker{late: late, hear: hear}
	b.calls, b.giveUp = context.WithCancel(context.Background())
	b.ended, b.end = context.WithCancel(context.Background())
	pause := maxPause
	if late > 0 {
		pause = min(pause, late)
		b.late = max(late, patience)
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
	err = ping(ctx)
	b.report(done, err)
	return err
}

// Call Postgres, and learn from how that ends. A call that may wait for what others do, such
// as the end of their transactions, says nothing by being late.
func (b *Breaker) Call(ctx context.Context, mayWait bool, call func(context.Context) error) error {
	if b == nil {
		return call(ctx)
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
	report := func(err error) { once.Do(func() { b.report(done, err) }) }
	if b.late > 0 && !mayWait {
		before := b.answers.Load()
		defer time.AfterFunc(b.late, func() {
			if b.answers.Load() == before { // else it may have waited for a connection, while others wait for rows
				report(errLate)
			}
		}).Stop()
	}
	err = call(ctx)
	report(outcome(ctx, err))
	if err != nil && underWay.Err() != nil {
		return fmt.Errorf("%w: given up: %w", rate.ErrUnavailable, err)
	}
	return err
}

// Doubt the server as soon as the call that begins now is late, unless it has ended before
// (stop). That it is late says nothing if it waits for a row, and alone not enough, so
// Postgres is asked for a sign of life, on another connection. If there is none in time, and
// nobody else had an answer meanwhile, the circuit opens.
func (b *Breaker) Doubt(ping func(context.Context) error) (stop func() bool) {
	if b == nil || b.late == 0 {
		return func() bool { return false }
	}
	return time.AfterFunc(b.late, func() { b.doubt(ping) }).Stop
}

func (b *Breaker) doubt(ping func(context.Context) error) {
	b.mu.Lock()
	if b.doubting || b.ended.Err() != nil {
		b.mu.Unlock()
		return
	}
	b.doubting = true
	underWay := b.calls
	b.doubts.Add(1)
	b.mu.Unlock()
	defer b.doubts.Done()

	ctx, cancel := context.WithTimeout(b.ended, b.late)
	defer cancel()
	before := b.answers.Load()
	err := ping(ctx)
	b.mu.Lock()
	b.doubting = false
	b.mu.Unlock()
	if err == nil || b.answers.Load() != before || underWay.Err() != nil || b.ended.Err() != nil {
		return
	}
	for range failures {
		if done, refused := b.states.Allow(); refused == nil {
			b.report(done, err)
		}
	}
}

// Close ends the doubts.
func (b *Breaker) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	b.doubts.Wait()
}

// outcome of a call, as far as it says something of the server. Whoever gets any answer has
// found it alive.
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

func (b *Breaker) underWay() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

// report the end of a call, or of a ping.
func (b *Breaker) report(done func(error), err error) {
	if err != nil && !errors.Is(err, errNoAnswer) {
		b.mu.Lock()
		b.why = err
		b.mu.Unlock()
	}
	if err == nil {
		b.answers.Add(1)
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

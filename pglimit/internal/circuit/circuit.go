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
	// maxPause is the longest time after a question for a sign of life in which nobody asks again.
	maxPause = 200 * time.Millisecond

	// A server is doubted after a silence of half the time limit, or of minSilence.
	minSilence = 50 * time.Millisecond

	// minSignTime is how long a sign of life may take at least: to connect to a busy server
	// takes some 100 ms.
	minSignTime = 200 * time.Millisecond
)

// ErrOpen: Postgres was not asked, because it has just not answered others.
var ErrOpen = fmt.Errorf("%w: it was not asked, because it has just not answered others", rate.ErrUnavailable)

// errNoAnswer is the outcome of a call that says nothing about the server: its context ended.
var errNoAnswer = errors.New("nobody waited for the answer")

// Breaker is closed while Postgres answers. It doubts that when a call has failed, or when there was
// silence: calls were waiting, and none was answered for half of the time that a call may take. Then it
// asks for a sign of life on a new connection, and opens if there is none. (Calls prove nothing: those that fail may
// have met a connection that was closed, those that wait rows that somebody holds locked.)
//
// When it opens, calls under way are given up, and new ones fail at once. After a pause one
// caller at a time asks for a sign of life; the first that gets it closes the circuit.
//
// A nil Breaker is always closed.
type Breaker struct {
	silence  time.Duration // after this long without an answer, the server is doubted
	signTime time.Duration // how long a sign of life may take
	sign     func(context.Context) error
	hear     func(open bool, why error)
	states   *gobreaker.TwoStepCircuitBreaker[struct{}]
	refusal  atomic.Pointer[openError] // nil: it is closed
	pause    time.Duration

	mu     sync.Mutex
	calls  context.Context // ends when the circuit opens, and with Close
	giveUp context.CancelFunc

	underWay   int         // calls
	unanswered bool        // a call has ended so, since the last answer
	quiet      time.Time   // the last answer, or when the first call began after that
	watch      *time.Timer // fires when the silence may have lasted too long
	watching   bool
	doubting   bool      // a question is under way
	alive      time.Time // when the last one was answered

	questions sync.WaitGroup  // for a sign of life, under way
	ended     context.Context // ends with Close
	end       context.CancelFunc
}

// New is a closed Breaker for calls that may take up to timeout. sign asks for a sign of life on
// a new connection. hear is told when the circuit opens, and why, and when it closes.
func New(timeout time.Duration, sign func(context.Context) error, hear func(open bool, why error)) *Breaker {
	silence := max(timeout/2, minSilence)
	b := &Breaker{silence: silence, signTime: max(silence, minSignTime), sign: sign, hear: hear, pause: min(maxPause, timeout)}
	b.ended, b.end = context.WithCancel(context.Background())
	b.calls, b.giveUp = context.WithCancel(b.ended)
	b.states = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     b.pause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures > 0 },
		IsExcluded:  func(err error) bool { return errors.Is(err, errNoAnswer) },
	})
	return b
}

// Open says whether callers are turned away.
func (b *Breaker) Open() bool { return b != nil && b.refusal.Load() != nil }

// openError is an ErrOpen that says why.
type openError struct{ why error }

func (e *openError) Error() string { return ErrOpen.Error() + ": " + e.why.Error() }

// Is an ErrOpen, and an ErrReadOnly if the server is. It is no other error that the sign of life was.
func (e *openError) Is(target error) bool {
	return target == rate.ErrReadOnly && errors.Is(e.why, target)
}

func (*openError) Unwrap() error { return ErrOpen }

// refuse returns the error of a call while the circuit is open, else nil.
func (b *Breaker) refuse() error {
	if why := b.refusal.Load(); why != nil {
		return why
	}
	return nil
}

// Admit lets a caller go on, or fails it. While the circuit is open, the caller may have to wait
// for a sign of life first.
func (b *Breaker) Admit(ctx context.Context) error {
	if !b.Open() {
		return nil
	}
	answer := make(chan error, 1)
	b.mu.Lock()
	done, refused := b.states.Allow()
	ended := b.ended.Err() != nil
	if refused == nil && !ended {
		b.questions.Go(func() { answer <- b.revive(done) })
	}
	b.mu.Unlock()
	if ended {
		return rate.ErrClosed
	}
	if refused != nil {
		return b.refuse() // nil: it has just closed
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		// The question outlives the caller. If callers have less time than it takes to connect, the
		// circuit would never close else.
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		return fmt.Errorf("%w: no sign of life so far: %w", rate.ErrUnavailable, ctx.Err())
	}
}

// revive closes the circuit if there is a sign of life.
func (b *Breaker) revive(done func(error)) error {
	if !b.Open() { // another caller has just got one
		b.report(done, errNoAnswer)
		return nil
	}
	err := b.ping()
	if b.ended.Err() != nil {
		b.report(done, errNoAnswer)
		return rate.ErrClosed
	}
	b.report(done, err)
	return err
}

// ping asks for a sign of life. Close gives the question up.
func (b *Breaker) ping() error {
	ctx, cancel := context.WithTimeout(b.ended, b.signTime)
	defer cancel()
	return b.sign(ctx)
}

// Call calls Postgres, and learns from the outcome and from how long it takes.
func (b *Breaker) Call(ctx context.Context, call func(context.Context) error) error {
	if b == nil {
		return call(ctx)
	}
	if err := b.refuse(); err != nil { // also after the pause, which only Admit can end
		return err
	}
	calls := b.begin()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(calls, cancel)()

	err := call(ctx)
	givenUp := calls.Err() != nil
	b.learn(outcome(ctx, err))
	if err != nil && b.ended.Err() != nil {
		return fmt.Errorf("%w: given up: %v", rate.ErrClosed, err) //nolint:errorlint // the caller has not cancelled
	}
	if err != nil && givenUp {
		return fmt.Errorf("%w: given up: %v", rate.ErrUnavailable, err) //nolint:errorlint // the caller has not cancelled
	}
	return err
}

// outcome is what a call says about the server. Any answer shows that the server is alive, even
// an error.
func outcome(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, isOver(ctx):
		return errNoAnswer
	case isOutage(err):
		return err
	}
	return nil
}

// isOver says that the deadline has passed. Who dials goes by it alone, and may fail a moment before
// the context has ended.
func isOver(ctx context.Context) bool {
	deadline, ends := ctx.Deadline()
	return ends && !time.Now().Before(deadline)
}

// isOutage says that the call may have met an outage. Other errors are answers of Postgres's. The latter
// is a time limit of the pool's own, for connecting.
func isOutage(err error) bool {
	return errors.Is(err, rate.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// begin notes that a call waits. The context ends when the circuit opens.
func (b *Breaker) begin() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.underWay == 0 && !b.unanswered { // the watch may be an older call's
		b.quiet = time.Now()
	}
	b.underWay++
	if !b.watching && !b.doubting {
		b.watchFor(b.silence)
	}
	return b.calls
}

// learn from the outcome of a call that has ended. One that failed is a doubt, unless the server has just
// answered another.
func (b *Breaker) learn(outcome error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay--
	b.unanswered = outcome != nil
	switch {
	case outcome == nil:
		b.quiet = time.Now()
	case !errors.Is(outcome, errNoAnswer) && time.Since(b.alive) >= b.pause:
		b.doubt()
	}
}

// watchFor the silence, which has lasted too long after that time. With the lock.
func (b *Breaker) watchFor(d time.Duration) {
	b.watching = true
	if b.watch == nil {
		b.watch = time.AfterFunc(d, b.listen)
	} else {
		b.watch.Reset(d)
	}
}

// listen for the silence: if it has lasted too long, the server is doubted.
func (b *Breaker) listen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watching = false
	if nobodyWaited := b.underWay == 0 && !b.unanswered; nobodyWaited || b.doubting {
		return
	}
	if left := b.silence - time.Since(b.quiet); left > 0 {
		b.watchFor(left)
		return
	}
	b.doubt()
}

// doubt the server: ask for a sign of life, one at a time. With the lock.
func (b *Breaker) doubt() {
	if b.doubting || b.ended.Err() != nil || b.Open() {
		return
	}
	b.doubting = true
	calls, quiet := b.calls, b.quiet
	b.questions.Go(func() { b.question(calls, quiet) })
}

// question the server. If there is no sign of life, and no call has been answered since, the circuit opens.
func (b *Breaker) question(calls context.Context, quiet time.Time) {
	err := b.ping()

	b.mu.Lock()
	dead := err != nil && b.quiet.Equal(quiet) && calls.Err() == nil && b.ended.Err() == nil
	b.unanswered, b.doubting = false, false
	if !dead {
		b.quiet = time.Now() // another silence has to last as long
		if b.underWay > 0 && !b.watching && b.ended.Err() == nil {
			b.watchFor(b.silence)
		}
	}
	if err == nil {
		b.alive = time.Now()
	}
	b.mu.Unlock()
	if !dead {
		return
	}
	if done, refused := b.states.Allow(); refused == nil {
		b.report(done, err)
	}
}

// Close gives up the calls and the questions for a sign of life under way, and waits for the latter.
func (b *Breaker) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.end() // no new question begins after this
	b.mu.Unlock()
	b.questions.Wait()
}

// report the answer to a question for a sign of life, and tell if the circuit opens or closes.
func (b *Breaker) report(done func(error), err error) {
	b.mu.Lock()
	done(err)
	open := b.states.State() != gobreaker.StateClosed
	changed := b.Open() != open
	switch {
	case errors.Is(err, errNoAnswer):
	case open:
		b.refusal.Store(&openError{err})
	default:
		b.refusal.Store(nil)
	}
	switch {
	case changed && open:
		b.giveUp()
	case changed:
		b.calls, b.giveUp = context.WithCancel(b.ended)
		b.unanswered, b.quiet = false, time.Now() // a sign of life is an answer
	}
	b.mu.Unlock()
	if changed {
		b.hear(open, err)
	}
}

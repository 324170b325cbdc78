package circuit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// How a call ends: x an outage, d one that the pool notices, which has a time limit of its own; c the
// caller cancels, t its deadline passes; . an answer, and errors that are answers: n nothing taken, m not
// migrated, l locked, o any other. After an outage it asks for a sign of life, which alone decides.
func TestAFailureIsADoubt(t *testing.T) {
	t.Parallel()
	for letter, doubts := range map[rune]bool{'x': true, 'd': true, 'c': false, 't': false, '.': false, 'n': false, 'm': false, 'l': false, 'o': false} {
		for _, alive := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				b := circuit.New(late, func(context.Context) error {
					asked++
					if alive {
						return nil
					}
					return errLost
				}, deaf)
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), late/20)
					err := map[rune]error{
						'x': errGone, 'd': fmt.Errorf("connecting: %w", context.DeadlineExceeded), '.': nil,
						'n': rate.ErrNothingTaken, 'm': rate.ErrNotMigrated, 'l': rate.ErrLocked, 'o': errOther,
						'c': context.Canceled, 't': context.DeadlineExceeded,
					}[letter]
					got := b.Call(ctx, func(ctx context.Context) error {
						switch letter {
						case 'c':
							cancel()
							return silent(ctx)
						case 't':
							return silent(ctx)
						}
						return err
					})
					if got != err && !b.Open() { //nolint:errorlint // as it is, not wrapped
						t.Errorf("%c: %v, want %v", letter, got, err)
					}
					cancel()
					synctest.Wait()
				}
				if want := map[bool]int{true: 1}[doubts]; asked != want || b.Open() != (doubts && !alive) {
					t.Errorf("%c, alive %t: asked %d times, open %t", letter, alive, asked, b.Open())
				}
				b.Close()
			})
		}
	}
}

// A server that is alive is not asked after each of the failures that follow, but after some time again.
func TestDoubtsHaveAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		b := circuit.New(late, func(context.Context) error { asked++; return nil }, deaf)
		for range 100 {
			_ = b.Call(t.Context(), returns(errGone))
			later(pause / 20)
		}
		if asked != 5 {
			t.Errorf("asked %d times", asked)
		}
		b.Close()
	})
}

// While it is open, callers hear why.
func TestAnOpenCircuitSaysWhy(t *testing.T) {
	t.Parallel()
	for _, why := range []error{errLost, fmt.Errorf("%w: here", rate.ErrReadOnly), fmt.Errorf("%w: %w", rate.ErrUnavailable, context.DeadlineExceeded)} {
		synctest.Test(t, func(t *testing.T) {
			b := circuit.New(late, returns(why), deaf)
			_ = b.Call(t.Context(), returns(errGone))
			synctest.Wait()
			for _, err := range []error{b.Call(t.Context(), never(t)), b.Admit(t.Context())} {
				if !errors.Is(err, circuit.ErrOpen) || !errors.Is(err, rate.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) ||
					errors.Is(err, rate.ErrReadOnly) != errors.Is(why, rate.ErrReadOnly) || !strings.Contains(err.Error(), why.Error()) {
					t.Errorf("%v: %v", why, err)
				}
			}
		})
	}
}

func TestWhatIsUnderWayIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &life{sign: returns(errGone)}
		b := circuit.New(late, l.ask, deaf)
		errs := make([]error, 6)
		began := time.Now()
		var work sync.WaitGroup
		for i := range errs {
			work.Go(func() {
				errs[i] = b.Call(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					if i == 5 {
						return nil // it was answered at the last moment
					}
					return ctx.Err()
				})
			})
		}
		later(late / 4)
		if err := b.Call(t.Context(), returns(errGone)); !errors.Is(err, errGone) {
			t.Error(err)
		}
		work.Wait()
		if took := time.Since(began); took != late/4 {
			t.Errorf("given up after %v", took)
		}
		for i, err := range errs {
			if i == 5 {
				if err != nil {
					t.Errorf("who has an answer: %v", err)
				}
				continue
			}
			if !errors.Is(err, rate.ErrUnavailable) || errors.Is(err, circuit.ErrOpen) || errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		// What was given up says nothing: it stays open for as long as ever, and closes as ever.
		later(pause + 1)
		if err := l.admit(t.Context(), b, returns(nil)); err != nil || b.Open() {
			t.Errorf("%v, open %t", err, b.Open())
		}
		if err := b.Call(t.Context(), func(ctx context.Context) error { return ctx.Err() }); err != nil {
			t.Errorf("a call after that: %v", err)
		}
	})
}

func TestNoBreakerIsAlwaysClosed(t *testing.T) {
	t.Parallel()
	var none *circuit.Breaker
	ctx := t.Context()
	for range 5 {
		if err := none.Call(ctx, func(got context.Context) error {
			if got != ctx {
				t.Error("another context")
			}
			return errGone
		}); err != errGone { //nolint:errorlint // as it is, not wrapped
			t.Error(err)
		}
	}
	if err := none.Admit(ctx); err != nil || none.Open() {
		t.Errorf("%v, open %t", err, none.Open())
	}
}

// Of each change once, and why it opens, and free to ask the Breaker itself.
func TestWhoHearsOfChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e ears
		var b *circuit.Breaker
		l := &life{sign: returns(nil)}
		b = circuit.New(late, l.ask, func(open bool, why error) {
			e.hear(open, why)
			if b.Open() != open {
				t.Errorf("told %t, open %t", open, b.Open())
			}
			if err := l.admit(t.Context(), b, never(t)); (err != nil) != open {
				t.Errorf("told %t: %v", open, err)
			}
			if err := b.Call(t.Context(), returns(nil)); (err != nil) != open {
				t.Errorf("told %t: %v", open, err)
			}
		})
		errFirst, errSecond, errThird := fmt.Errorf("%w: 1", errGone), fmt.Errorf("%w: 2", errGone), fmt.Errorf("%w: 3", errGone)
		l.sign = returns(errSecond)
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() { _ = b.Call(t.Context(), silent) }) // which end when it opens
		}
		synctest.Wait()
		for _, err := range []error{nil, errOther, errFirst, errThird} {
			_ = b.Call(t.Context(), returns(err))
			synctest.Wait()
		}
		work.Wait()
		for _, err := range []error{errThird, errThird, nil, nil} {
			later(pause + 1)
			_ = l.admit(t.Context(), b, returns(err))
		}
		if want := []bool{true, false}; !slices.Equal(e.open, want) {
			t.Errorf("told %v", e.open)
		}
		if want := []error{errSecond, nil}; !slices.Equal(e.why, want) {
			t.Errorf("because of %v, want %v", e.why, want)
		}
	})
}

// Close ends calls, and who asks for a sign of life. If that came all the same, it is too late.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := circuit.New(late, returns(nil), deaf)
		heard := make(chan error, 1)
		go func() { heard <- b.Call(t.Context(), silent) }()
		synctest.Wait()
		b.Close()
		if err := <-heard; !errors.Is(err, rate.ErrClosed) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, late, deaf)
			later(pause + 1)
			heard := make(chan error, 1)
			began := time.Now()
			go func() {
				heard <- l.admit(t.Context(), b, func(ctx context.Context) error {
					<-ctx.Done()
					if comes {
						return nil
					}
					return ctx.Err()
				})
			}()
			later(1)
			b.Close()
			if err := <-heard; !errors.Is(err, rate.ErrClosed) || time.Since(began) != 1 {
				t.Errorf("the sign comes %t: %v after %v", comes, err, time.Since(began))
			}
			later(pause + 1)
			if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, rate.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// overdue is a context whose deadline has passed, and that has not ended yet: its timer is late.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now(), true }

// Callers whose own time ends while they dial say nothing about the server.
func TestADialThatRanOutOfItsCallersTimeIsNoOutage(t *testing.T) {
	t.Parallel()
	b := circuit.New(late, returns(nil), deaf)
	defer b.Close()
	dial := fmt.Errorf("%w: dial tcp: %w", rate.ErrUnavailable, os.ErrDeadlineExceeded)
	for range 5 {
		if err := b.Call(overdue{t.Context()}, func(context.Context) error { return dial }); !errors.Is(err, dial) {
			t.Error(err)
		}
	}
	if b.Open() {
		t.Error("it is open")
	}
}

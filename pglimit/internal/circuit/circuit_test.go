package circuit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// How calls end that follow one another: x an outage, d one that the pool notices, which has a
// time limit of its own; c the caller cancels, t its deadline passes; . an answer, and errors
// that are answers: n nothing taken, m not migrated, l locked, o any other.
func TestOutagesInARowOpenIt(t *testing.T) {
	t.Parallel()
	for calls, opens := range map[string]bool{
		"": false, "x": false, "xx": true, "d": false, "dd": true, "xd": true, "dx": true,
		"x.x": false, "x.x.x.x": false, "x.xx": true, "xnx": false, "xmx": false, "xlx": false, "xox": false, "xoxx": true,
		"nnn": false, "mmm": false, "lll": false, "ooo": false, "...": false,
		"ccc": false, "ttt": false, "xcx": true, "xtx": true, "xct": false, "xc.x": false,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := circuit.New(late, returns(nil), deaf)
			for i, letter := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), late/2)
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
				if got != err { //nolint:errorlint // as it is, not wrapped
					t.Errorf("%q: call %d: %v, want %v", calls, i, got, err)
				}
				cancel()
			}
			if b.Open() != opens {
				t.Errorf("%q: open %t", calls, b.Open())
			}
		})
	}
}

// Postgres may answer that it does not want to, which is an answer all the same: the next
// request may be another. While it starts or stops, or has no place for a connection, it is not.
func TestWhichAnswersAreOutages(t *testing.T) {
	t.Parallel()
	for code, outage := range map[string]bool{
		"57P01": true, "57P03": true, "08006": true, "53300": true,
		"25006": false, "53100": false, "58030": false, "28P01": false, "40001": false,
	} {
		b := circuit.New(late, returns(nil), deaf)
		for range 2 {
			_ = b.Call(t.Context(), returns(pgError(code)))
		}
		if b.Open() != outage {
			t.Errorf("%s: open %t", code, b.Open())
		}
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, late, deaf)
			later(pause + 1)
			if err := l.admit(t.Context(), b, returns(pgError(code))); (err != nil) != outage || b.Open() != outage {
				t.Errorf("%s, as a sign of life: %v, open %t", code, err, b.Open())
			}
			// A doubt asks whether the server is alive, and not whether it has a place for us.
			b = circuit.New(late, returns(pgError(code)), deaf)
			ctx, leave := context.WithCancel(t.Context())
			go func() { _ = b.Call(ctx, silent) }()
			later(2 * late)
			if dead := outage && code != "53300"; b.Open() != dead {
				t.Errorf("%s, in doubt: open %t", code, b.Open())
			}
			leave()
			b.Close()
		})
	}
}

func TestWhatIsUnderWayIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &life{sign: returns(nil)}
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
		later(late / 2)
		for range 2 {
			if err := b.Call(t.Context(), returns(errGone)); err != errGone && !errors.Is(err, errGone) { //nolint:errorlint // the last opens it
				t.Error(err)
			}
		}
		work.Wait()
		if took := time.Since(began); took != late/2 {
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

// Of each change once, with the failure before it, and free to ask the Breaker itself.
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
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() { _ = b.Call(t.Context(), silent) }) // which end when it opens
		}
		synctest.Wait()
		for _, err := range []error{nil, errFirst, errOther, errFirst, errSecond, errThird} {
			_ = b.Call(t.Context(), returns(err))
		}
		work.Wait()
		for _, err := range []error{errThird, errThird, nil, nil} {
			later(pause + 1)
			_ = l.admit(t.Context(), b, returns(err))
		}
		if want := []bool{true, false}; !slices.Equal(e.open, want) {
			t.Errorf("told %v", e.open)
		}
		if want := []error{errSecond, errThird}; !slices.Equal(e.why, want) {
			t.Errorf("because of %v, want %v", e.why, want)
		}
	})
}

// Many at once, while the server comes and goes: it is let alone while it is away, never asked
// for a sign of life by two at a time, and found again when it is back.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e ears
		l := &life{sign: silent}
		b := circuit.New(late, l.ask, e.hear)
		var away atomic.Bool
		var pinging, calls, lost atomic.Int64
		answer := func(ctx context.Context) error {
			time.Sleep(time.Duration(1+rand.IntN(5)) * time.Millisecond)
			if away.Load() {
				return errGone
			}
			return ctx.Err()
		}
		ping := func(ctx context.Context) error {
			if pinging.Add(1) > 1 {
				t.Error("two ask for a sign of life")
			}
			defer pinging.Add(-1)
			return answer(ctx)
		}
		for range 10 { // outages and recoveries
			end := time.Now().Add(3 * pause)
			var work sync.WaitGroup
			for range 30 {
				work.Go(func() {
					for time.Now().Before(end) {
						err := l.admit(t.Context(), b, ping)
						if err == nil {
							calls.Add(1)
							err = b.Call(t.Context(), answer)
						}
						if err != nil {
							lost.Add(1)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			work.Wait()
			if b.Open() != away.Load() {
				t.Errorf("away %t, open %t", away.Load(), b.Open())
			}
			away.Store(!away.Load())
		}
		if n := len(e.open); n != 9 {
			t.Errorf("told of %d changes", n)
		}
		for i, open := range e.open {
			if open != (i%2 == 0) {
				t.Errorf("told %v", e.open)
				break
			}
		}
		if calls.Load() < 5000 || lost.Load() < 5000 {
			t.Errorf("%d calls, %d lost", calls.Load(), lost.Load())
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

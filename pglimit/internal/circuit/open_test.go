package circuit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestWhileItIsOpenNobodyIsLetThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := open(t, late, deaf)
		for range 10 {
			began := time.Now()
			for _, err := range []error{l.admit(t.Context(), b, never(t)), b.Call(t.Context(), never(t))} {
				if !errors.Is(err, circuit.ErrOpen) || !errors.Is(err, rate.ErrUnavailable) {
					t.Error(err)
				}
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("after %v", took)
			}
			time.Sleep(pause / 10)
		}
	})
}

// A call that did not ask for a sign of life is none: it would be given up as soon as it began.
func TestAfterThePauseACallDoesNotGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := open(t, late, deaf)
		later(pause + 1)
		if err := b.Call(t.Context(), never(t)); !errors.Is(err, circuit.ErrOpen) {
			t.Error(err)
		}
		if err := l.admit(t.Context(), b, returns(nil)); err != nil || b.Open() {
			t.Errorf("%v, open %t", err, b.Open())
		}
	})
}

func TestAfterThePauseOneAsksForASignOfLife(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		late, pause time.Duration
	}{{late, pause}, {50 * time.Millisecond, 50 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, test.late, deaf)
			ping := make(chan error)
			for _, answer := range []error{errGone, errLost, nil} {
				later(test.pause)
				if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, circuit.ErrOpen) {
					t.Errorf("%+v: at the end of the pause: %v", test, err)
				}
				later(1)
				var first error
				go func() { first = l.admit(t.Context(), b, func(context.Context) error { return <-ping }) }()
				synctest.Wait()
				for range 3 {
					for _, err := range []error{l.admit(t.Context(), b, never(t)), b.Call(t.Context(), never(t))} {
						if !errors.Is(err, circuit.ErrOpen) {
							t.Errorf("%+v: meanwhile: %v", test, err)
						}
					}
					later(test.pause / 4)
				}
				ping <- answer
				synctest.Wait()
				if first != answer || b.Open() != (answer != nil) { //nolint:errorlint // as it is, not wrapped
					t.Errorf("%+v: who asked has %v, open %t", test, first, b.Open())
				}
			}
			if err := l.admit(t.Context(), b, never(t)); err != nil {
				t.Errorf("%+v: after the sign of life: %v", test, err)
			}
			if err := b.Call(t.Context(), returns(nil)); err != nil {
				t.Errorf("%+v: after the sign of life: %v", test, err)
			}
		})
	}
}

// A caller may have less time than a sign of life takes, or leave: the question goes on, one at a
// time, and its answer counts.
func TestASignOfLifeForWhichNobodyWaits(t *testing.T) {
	t.Parallel()
	for _, cancels := range []bool{true, false} {
		for _, alive := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b, l := open(t, late, deaf)
				later(pause + 1)
				ctx, leave := context.WithTimeout(t.Context(), late/4)
				defer leave()
				if cancels {
					time.AfterFunc(late/10, leave)
				}
				err := l.admit(ctx, b, func(ctx context.Context) error {
					later(late / 3)
					if !alive {
						return errGone
					}
					return ctx.Err()
				})
				if !errors.Is(err, ctx.Err()) || errors.Is(err, rate.ErrUnavailable) == cancels {
					t.Errorf("cancels %t: %v", cancels, err)
				}
				if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, circuit.ErrOpen) {
					t.Errorf("cancels %t: while the question is under way, the next has %v", cancels, err)
				}
				later(late / 3)
				if b.Open() == alive {
					t.Errorf("cancels %t: after the answer alive %t it is open %t", cancels, alive, b.Open())
				}
			})
		}
	}
}

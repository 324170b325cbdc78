package pglimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// resettingFake resets all, in name.
type resettingFake struct {
	*fake
	err error
}

func (f resettingFake) ResetAll(context.Context, pglimit.Session, string) (int64, error) {
	return 7, f.err
}

func TestResetAllNeedsAStrategyThatCan(t *testing.T) {
	t.Parallel()
	if _, err := remembering(t, &fake{}, nil).ResetAll(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("the error is %v", err)
	}
	broken := errors.New("broken")
	n, err := remembering(t, resettingFake{&fake{}, broken}, nil).ResetAll(t.Context())
	if n != 7 || !errors.Is(err, broken) {
		t.Errorf("%d, %v", n, err)
	}
}

// What was denied before a reset of all is asked again, also where the answer came after
// it, or the reset failed, perhaps when it was done; what is denied later is remembered
// as ever.
func TestResetAllForgetsDenials(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"done": nil, "failed": errors.New("late")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				retry := 900 * time.Millisecond
				strategy := &fake{take: func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) {
					d := pglimit.Decision{RetryAfter: retry, ResetAfter: time.Hour, At: time.Unix(1000, 0).UTC()}
					time.Sleep(10 * time.Millisecond)
					return []pglimit.Decision{d}, nil
				}}
				limiter := remembering(t, resettingFake{strategy, failed}, nil)
				ask := func(key string) { _, _ = limiter.AllowN(t.Context(), key, 3) }
				asked := func(when string, want int) {
					t.Helper()
					if len(strategy.taken) != want {
						t.Errorf("%s: Postgres was asked %d times, not %d", when, len(strategy.taken), want)
					}
				}
				ask("a")
				ask("a")
				asked("remembered", 1)
				done := make(chan struct{})
				go func() {
					defer close(done)
					ask("b")
				}()
				synctest.Wait() // b is under way
				if _, err := limiter.ResetAll(t.Context()); !errors.Is(err, failed) {
					t.Errorf("the error is %v", err)
				}
				<-done
				asked("b, sent before the reset", 2)
				retry = 100 * time.Millisecond // which ends sooner than what is forgotten would
				ask("b")
				asked("b, whose answer came after it", 3)
				ask("a")
				asked("a, which was remembered", 4)
				ask("a")
				ask("b")
				asked("both are remembered anew", 4)
			})
		})
	}
}

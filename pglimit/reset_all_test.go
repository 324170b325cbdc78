package pglimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
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
				strategy := &fake{take: func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
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

// slowReset resets, all or one key, as the test says.
type slowReset struct {
	*outage
	reset  func(context.Context) error
	resets int
}

func (s *slowReset) Reset(ctx context.Context, _ pglimit.Session, _, _ string) error {
	s.resets++
	return s.reset(ctx)
}

func (s *slowReset) ResetAll(ctx context.Context, _ pglimit.Session, _ string) (int64, error) {
	return 0, s.Reset(ctx, nil, "", "")
}

// bothResets is a test of Reset, and of ResetAll, on a Limiter with a breaker.
func bothResets(t *testing.T, test func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error)) {
	for name, all := range map[string]bool{"Reset": false, "ResetAll": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &slowReset{outage: newOutage(), reset: func(context.Context) error { return nil }}
				limiter, err := pglimit.New(s, s, config(func(c *pglimit.Config) { c.Breaker.Off, c.Timeout = false, time.Second }))
				if err != nil {
					t.Fatal(err)
				}
				test(t, s, limiter, func(ctx context.Context) error {
					if !all {
						return limiter.Reset(ctx, "k")
					}
					_, err := limiter.ResetAll(ctx)
					return err
				})
			})
		})
	}
}

func TestAResetAfterClose(t *testing.T) {
	t.Parallel()
	bothResets(t, func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error) {
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := reset(t.Context()); !errors.Is(err, pglimit.ErrClosed) || s.resets != 0 {
			t.Errorf("%v, %d sent", err, s.resets)
		}
	})
}

func TestCloseWaitsForAReset(t *testing.T) {
	t.Parallel()
	bothResets(t, func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error) {
		s.reset = func(ctx context.Context) error {
			time.Sleep(300 * time.Millisecond)
			return ctx.Err()
		}
		done := make(chan error, 1)
		go func() { done <- reset(t.Context()) }()
		synctest.Wait()
		began := time.Now()
		if err := limiter.Close(t.Context()); err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("close: %v after %v", err, time.Since(began))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A reset that hangs does not go on after Close.
func TestCloseGivesUpAReset(t *testing.T) {
	t.Parallel()
	bothResets(t, func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error) {
		s.reset = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		done := make(chan error, 1)
		go func() { done <- reset(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := limiter.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close: %v", err)
		}
		if err := <-done; !errors.Is(err, pglimit.ErrClosed) || errors.Is(err, context.Canceled) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Config.Timeout ends a Reset, and no ResetAll, which has a long way to go.
func TestTheTimeLimitOfAReset(t *testing.T) {
	t.Parallel()
	bothResets(t, func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error) {
		s.reset = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return errors.New("canceling statement due to user request") // as a server says it
			case <-time.After(time.Minute):
				return nil
			}
		}
		began := time.Now()
		err := reset(t.Context())
		took := time.Since(began)
		if took == time.Minute && err == nil && strings.HasSuffix(t.Name(), "/ResetAll") {
			return
		}
		if took != time.Second || !errors.Is(err, pglimit.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || pglimit.CauseOf(err) != pglimit.CauseTimeout {
			t.Errorf("%v after %v", err, took)
		}
		later(time.Minute)
	})
}

func TestAResetWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	bothResets(t, func(t *testing.T, s *slowReset, limiter *pglimit.Limiter, reset func(context.Context) error) {
		s.is(true, false)
		opened(t, limiter, time.Second)
		began := time.Now()
		if err := reset(t.Context()); pglimit.CauseOf(err) != pglimit.CauseBreaker || time.Since(began) != 0 || s.resets != 0 {
			t.Errorf("%v after %v, %d sent", err, time.Since(began), s.resets)
		}
		s.is(false, false)
		later(250 * time.Millisecond)
		if err := reset(t.Context()); err != nil || s.resets != 1 || limiter.Stats().Open != 0 {
			t.Errorf("%v, %d sent", err, s.resets)
		}
	})
}

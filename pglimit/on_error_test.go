package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var errDown = errors.New("the server is down")

// asked is an OnError that remembers what it was told.
type asked struct {
	requests []pglimit.Request
	errs     []error
	ctx      context.Context
	answer   func(context.Context, pglimit.Failure) (pglimit.Decision, error)
}

func (a *asked) onError(ctx context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
	a.ctx, a.requests, a.errs = ctx, append(a.requests, failed.Request), append(a.errs, failed.Err)
	return a.answer(ctx, failed)
}

func TestFailOpenAndFailClosed(t *testing.T) {
	t.Parallel()
	errNew := errors.New("as the caller likes")
	for _, test := range []struct {
		name   string
		answer func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		want   pglimit.Decision
		err    error
	}{
		{"FailOpen", pglimit.FailOpen, pglimit.Decision{Allowed: true, Granted: 3}, nil},
		{"FailClosed", pglimit.FailClosed, pglimit.Decision{RetryAfter: time.Second}, nil},
		{"an error of its own", func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			return pglimit.Decision{Granted: 99}, errNew
		}, pglimit.Decision{}, errNew},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			onError := asked{answer: test.answer}
			limiter := newLimiter(t, &fake{take: fail(errDown)}, func(c *pglimit.Config) { c.OnError = onError.onError })
			d, err := limiter.AllowN(t.Context(), "k", 3)
			if test.err == nil {
				test.want.Source, test.want.Limiter, test.want.Key, test.want.Limit = pglimit.FromFallback, "api", "k", limiter.Limit()
			}
			if d != test.want || !errors.Is(err, test.err) {
				t.Errorf("%+v, %v", d, err)
			}
			if len(onError.requests) != 1 || onError.requests[0].Key != "k" || onError.requests[0].Tokens != 3 || !errors.Is(onError.errs[0], errDown) {
				t.Errorf("asked %+v", onError)
			}
		})
	}
}

func TestAPeekThatFailsOpenGrantsNothing(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &fake{take: fail(errDown)}, func(c *pglimit.Config) { c.OnError = pglimit.FailOpen })
	if d, err := limiter.Peek(t.Context(), "k"); err != nil || d != (pglimit.Decision{Allowed: true, Source: pglimit.FromFallback, Limiter: "api", Key: "k", Limit: limiter.Limit()}) {
		t.Errorf("%+v, %v", d, err)
	}
}

// A database that is set up wrongly is no outage: a limiter that fails open would let
// everybody pass for ever. Neither is the end of the limiter.
func TestOnErrorIsNotAskedAboutWhatDoesNotEndByItself(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{pglimit.ErrNotMigrated, pglimit.ErrPermission, pglimit.ErrSetting, pglimit.ErrPooler} {
		limiter := newLimiter(t, &fake{take: fail(fmt.Errorf("no: %w", fault))}, func(c *pglimit.Config) { c.OnError = pglimit.FailOpen })
		if d, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, fault) || d.Allowed {
			t.Errorf("%v: %+v, %v", fault, d, err)
		}
	}
	for _, alone := range []bool{false, true} {
		limiter := newLimiter(t, &fake{}, func(c *pglimit.Config) { c.OnError, c.Combine.Off = pglimit.FailOpen, alone })
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if d, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrClosed) || d.Allowed {
			t.Errorf("closed: %+v, %v", d, err)
		}
	}
}

// until blocks as a server that does not answer, and then fails like this.
func until(fail func(ctx context.Context) error) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(ctx context.Context, _ []rate.Request) ([]pglimit.Decision, error) {
		<-ctx.Done()
		return nil, fail(ctx)
	}
}

func TestTimeoutSaysThatNoDecisionIsKnown(t *testing.T) {
	t.Parallel()
	errServer := errors.New("canceling statement due to user request")
	for name, test := range map[string]struct {
		fail func(ctx context.Context) error
		want string
	}{
		"the context's error": {
			func(ctx context.Context) error { return fmt.Errorf("timeout: %w", ctx.Err()) },
			"pglimit: no decision within Config.Timeout (2s): timeout: context deadline exceeded",
		},
		"the server's, when the pool cancels there": {
			func(context.Context) error { return errServer },
			"pglimit: no decision within Config.Timeout (2s): canceling statement due to user request",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				limiter := newLimiter(t, &fake{take: until(test.fail)}, func(c *pglimit.Config) { c.Timeout = 2 * time.Second })
				_, err := limiter.Allow(t.Context(), "k")
				if err == nil || err.Error() != test.want {
					t.Errorf("%v, want %s", err, test.want)
				}
				if took := time.Since(began); took != 2*time.Second {
					t.Errorf("after %v", took)
				}
			})
		})
	}
}

// The connection may notice the deadline before the context does.
func TestADeadlineThatTheConnectionNoticesIsATimeout(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &fake{take: fail(context.DeadlineExceeded)}, func(c *pglimit.Config) { c.Timeout = time.Hour })
	_, err := limiter.Allow(t.Context(), "k")
	if err == nil || err.Error() != "pglimit: no decision within Config.Timeout (1h0m0s): context deadline exceeded" {
		t.Error(err)
	}
	if !errors.Is(err, pglimit.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is no outage", err)
	}
	limiter = newLimiter(t, &fake{take: fail(context.DeadlineExceeded)}, func(c *pglimit.Config) { c.Timeout = pglimit.NoTimeout })
	if _, err := limiter.Allow(t.Context(), "k"); err != context.DeadlineExceeded { //nolint:errorlint // as it is, not wrapped
		t.Errorf("without a time limit: %v", err)
	}
}

// In the caller's transaction only a Timeout that was set holds, because it ends the
// transaction; nothing is made up that the transaction, which has failed, does not do; and
// the end of the Limiter is the end of it.
func TestInTxFailsWithItsTransaction(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, pglimit.NoTimeout, time.Hour} {
		strategy := &fake{take: fail(errDown)}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Timeout, c.OnError = timeout, pglimit.FailOpen })
		in := limiter.On(pglimit.InTx(pglimitTx{}))
		if d, err := in.Allow(t.Context(), "k"); !errors.Is(err, errDown) || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if _, limited := strategy.ctx.Deadline(); limited != (timeout > 0) {
			t.Errorf("timeout %v: deadline %t", timeout, limited)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := in.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestOnErrorIsAskedAfterATimeoutWithAContextThatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		onError := asked{answer: pglimit.FailOpen}
		limiter := newLimiter(t, &fake{take: until(context.Context.Err)}, func(c *pglimit.Config) {
			c.Timeout, c.OnError = time.Second, onError.onError
		})
		d, err := limiter.Allow(t.Context(), "k")
		if err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if len(onError.errs) != 1 || !errors.Is(onError.errs[0], context.DeadlineExceeded) || !strings.Contains(onError.errs[0].Error(), "Config.Timeout (1s)") {
			t.Errorf("asked %v", onError.errs)
		}
		if onError.ctx.Err() != nil {
			t.Error("the fallback was given a context that had ended")
		}
	})
}

// The caller's own deadline is no fault of Config.Timeout, and no decision is known.
func TestTheCallersDeadline(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
	}{{"is returned", nil}, {"may fail open", pglimit.FailOpen}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				limiter := newLimiter(t, &fake{take: until(context.Context.Err)}, func(c *pglimit.Config) {
					c.Timeout, c.OnError = time.Minute, test.onError
				})
				d, err := limiter.Allow(ctx, "k")
				if test.onError == nil {
					if err != context.DeadlineExceeded { //nolint:errorlint // as it is, not wrapped
						t.Errorf("%+v, %v", d, err)
					}
				} else if err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			})
		})
	}
}

// Nobody waits without end, unless it is asked for.
func TestATimeoutLimitsTheCallByDefault(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{pglimit.NoTimeout, 0, time.Hour} {
		strategy := &fake{}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Timeout = timeout })
		if _, err := limiter.Allow(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		if _, limited := strategy.ctx.Deadline(); limited != (timeout != pglimit.NoTimeout) {
			t.Errorf("timeout %v: deadline %t", timeout, limited)
		}
	}
}

package pglimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// What becomes of requests while it is open is for OnError to say, which is asked of each.
func TestOnErrorWhileTheBreakerIsOpen(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		onError := asked{answer: pglimit.FailLocal(4)} // 2.5 a second, 5 at once
		var quiet bool
		limiter := breaking(t, o, func(c *pglimit.Config) {
			change(c)
			c.OnError = func(ctx context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
				if quiet {
					return pglimit.Decision{}, failed.Err
				}
				return onError.onError(ctx, failed)
			}
		})
		o.is(true, false)
		quiet = true
		_, _ = limiter.Allow(t.Context(), "k")
		synctest.Wait()
		quiet = false
		calls := o.calls()
		for n := range 7 {
			d, err := limiter.Allow(t.Context(), "k")
			if err != nil || d.Allowed != (n < 5) || d.Source != pglimit.FromFallback || d.Limit != limiter.Limit() || !d.At.IsZero() {
				t.Errorf("request %d: %+v, %v", n, d, err)
			}
			if n >= 5 && d.RetryAfter != 400*time.Millisecond {
				t.Errorf("come back after %v", d.RetryAfter)
			}
		}
		decisions, err := limiter.DoEach(t.Context(), wants(t, "other:2 k:1 other:4/1")...)
		if got := granted(decisions); err != nil || got != "2/3 -/0 3/0" {
			t.Errorf("%s, %v", got, err)
		}
		if len(onError.errs) != 10 || o.calls() != calls || o.asked() != 1 {
			t.Errorf("asked %d times, %d calls", len(onError.errs), o.calls()-calls)
		}
		for _, err := range onError.errs {
			if pglimit.CauseOf(err) != pglimit.CauseBreaker {
				t.Error(err)
			}
		}
		stats := limiter.Stats()
		if stats.Allowed[pglimit.FromFallback] != 7 || stats.Denied[pglimit.FromFallback] != 3 || stats.Failed[pglimit.CauseBreaker] != 10 || stats.Failed[pglimit.CauseUnavailable] != 1 {
			t.Errorf("%+v", stats)
		}
		time.Sleep(400*time.Millisecond + time.Microsecond)
		// This one asks for a sign of life, in vain.
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || o.asked() != 2 {
			t.Errorf("a token later: %+v, %v", d, err)
		}
		if err := onError.errs[10]; pglimit.CauseOf(err) != pglimit.CauseUnavailable || !strings.Contains(err.Error(), "no sign of life: no connection") {
			t.Error(err)
		}
		o.is(false, false)
		later(250 * time.Millisecond)
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Source != pglimit.FromDatabase {
			t.Errorf("when it is back: %+v, %v", d, err)
		}
	})
}

func TestFailLocalNeedsAnInstance(t *testing.T) {
	t.Parallel()
	for _, instances := range []int{0, -1} {
		func() {
			defer func() {
				if what, want := recover(), fmt.Sprintf("pglimit: FailLocal(%d): the number of instances that share the limit must be at least 1", instances); what != want {
					t.Errorf("%v, want %s", what, want)
				}
			}()
			pglimit.FailLocal(instances)
		}()
	}
}

// What the memory knows it says while the breaker is open, and in a transaction of the
// caller's there is none.
func TestWhatAnOpenBreakerDoesNotStop(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.Memory.Off = false })
		o.take = answer(pglimit.Decision{RetryAfter: time.Minute, ResetAfter: time.Minute})
		_, _ = limiter.Allow(t.Context(), "denied")
		o.take = fail(pglimit.ErrUnavailable)
		o.is(true, false)
		_, _ = limiter.Allow(t.Context(), "k")
		synctest.Wait()
		if limiter.Stats().Open != 1 {
			t.Fatal("it is not open")
		}
		if d, err := limiter.Allow(t.Context(), "denied"); err != nil || d.Allowed || d.Source != pglimit.FromMemory {
			t.Errorf("%+v, %v", d, err)
		}
		o.take = grantAll
		if d, err := limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "k"); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if _, err := limiter.Allow(t.Context(), "k"); pglimit.CauseOf(err) != pglimit.CauseBreaker {
			t.Error(err)
		}
	})
}

package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err   error
		cause pglimit.Cause
		text  string
	}{
		{nil, pglimit.CauseOther, "other"},
		{errDown, pglimit.CauseOther, "other"},
		{context.Canceled, pglimit.CauseOther, "other"},
		{pglimit.ErrClosed, pglimit.CauseClosed, "closed"},
		{fmt.Errorf("%w: %w", pglimit.ErrClosed, pglimit.ErrUnavailable), pglimit.CauseClosed, "closed"},
		{pglimit.ErrUnavailable, pglimit.CauseUnavailable, "unavailable"},
		{fmt.Errorf("%w: given up: %w", pglimit.ErrUnavailable, context.Canceled), pglimit.CauseUnavailable, "unavailable"},
		{context.DeadlineExceeded, pglimit.CauseTimeout, "timeout"},
		{errors.Join(pglimit.ErrUnavailable, context.DeadlineExceeded), pglimit.CauseTimeout, "timeout"},
		{circuit.ErrOpen, pglimit.CauseBreaker, "breaker"},
		{pglimit.ErrOverloaded, pglimit.CauseOverloaded, "overloaded"},
		{pglimit.ErrNotMigrated, pglimit.CauseNotMigrated, "not_migrated"},
		{pglimit.ErrPermission, pglimit.CausePermission, "permission"},
		{pglimit.ErrSetting, pglimit.CauseSetting, "setting"},
		{pglimit.ErrPooler, pglimit.CausePooler, "pooler"},
		{pglimit.ErrNothingTaken, pglimit.CauseRefused, "refused"},
		{fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken), pglimit.CauseRefused, "refused"},
	} {
		for _, err := range []error{test.err, fmt.Errorf("request 3: %w", test.err), errors.Join(test.err)} {
			if got := pglimit.CauseOf(err); got != test.cause || got.String() != test.text {
				t.Errorf("%v: %v, want %v", err, got, test.text)
			}
		}
	}
	for unknown, text := range map[pglimit.Cause]string{-1: "Cause(-1)", 11: "Cause(11)", 99: "Cause(99)"} {
		if unknown.String() != text {
			t.Errorf("%v, want %s", unknown, text)
		}
	}
}

// Config.Timeout is a timeout, although it is an outage too.
func TestTheCauseOfATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, &fake{take: until(func(context.Context) error { return pglimit.ErrUnavailable })}, func(c *pglimit.Config) { c.Timeout = time.Second })
		_, err := limiter.Allow(t.Context(), "k")
		if cause := pglimit.CauseOf(err); cause != pglimit.CauseTimeout {
			t.Errorf("%v: %v", err, cause)
		}
	})
}

// What the breaker gave up is an outage. Nobody has cancelled it.
func TestTheCauseOfACallThatWasGivenUp(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.Timeout = 4 * time.Second })
		o.is(false, true)
		var work sync.WaitGroup
		var mu sync.Mutex
		givenUp := 0
		for range 10 {
			work.Go(func() {
				_, err := limiter.Allow(t.Context(), "k")
				cause := pglimit.CauseOf(err)
				if errors.Is(err, context.Canceled) || !errors.Is(err, pglimit.ErrUnavailable) || cause != pglimit.CauseUnavailable && cause != pglimit.CauseBreaker {
					t.Errorf("%v: %v", cause, err)
				}
				if err != nil && strings.Contains(err.Error(), "given up") && cause == pglimit.CauseUnavailable {
					mu.Lock()
					givenUp++
					mu.Unlock()
				}
			})
			time.Sleep(150 * time.Millisecond)
		}
		o.is(true, false) // which is found out when the silence has lasted for half of Timeout
		work.Wait()
		if stats := limiter.Stats(); givenUp == 0 || stats.Canceled != 0 || stats.Failed.Total() != 10 {
			t.Errorf("%d were given up: %+v", givenUp, stats)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
		later(time.Minute)
	})
}

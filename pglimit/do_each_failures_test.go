package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A bucket that is to blame fails its own request.
func TestOneRequestsFaultIsItsOwn(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		errRow := fmt.Errorf("%w: a bad row", pglimit.ErrNothingTaken)
		there := map[string]int64{"a": 3, "b": 20, "c": 7}
		strategy := &fake{take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Key == "bad" }) {
				return nil, errRow
			}
			return buckets(there)(ctx, requests)
		}}
		limiter := newLimiter(t, strategy, change)
		ask := wants(t, "a:2 bad:1 a:2 c:7 bad:2")
		decisions, err := limiter.DoEach(t.Context(), ask...)
		if got := granted(decisions); got != "2/1 -/0 -/1 7/0 -/0" || decisions[1] != (pglimit.Decision{}) {
			t.Errorf("%s", got)
		}
		if !errors.Is(err, errRow) || err.Error() != fmt.Sprintf("request 1: %v\nrequest 4: %v", errRow, errRow) {
			t.Error(err)
		}
		if stats := limiter.Stats(); stats.Failed[pglimit.CauseRefused] != 2 || stats.Failed.Total() != 2 || decided(stats) != 3 {
			t.Errorf("%+v", stats)
		}
		// And OnError is asked of it alone.
		onError := asked{answer: pglimit.FailOpen}
		limiter = newLimiter(t, strategy, func(c *pglimit.Config) { change(c); c.OnError = onError.onError })
		decisions, err = limiter.DoEach(t.Context(), wants(t, "bad:4/2 b:1 bad:3")...)
		if got := granted(decisions); err != nil || got != "4/0 1/19 3/0" || decisions[0].Source != pglimit.FromFallback || decisions[1].Source != pglimit.FromDatabase {
			t.Errorf("%s, %v", got, err)
		}
		if len(onError.requests) != 2 || onError.requests[0].Key != "bad" || onError.requests[0].Tokens != 4 || onError.requests[0].Unit != 2 || onError.requests[1].Tokens != 3 || !errors.Is(onError.errs[0], errRow) {
			t.Errorf("%+v", onError)
		}
	})
}

// A row that somebody holds is waited for, and the others do not wait with it.
func TestTakeOfAKeyThatIsLocked(t *testing.T) {
	t.Parallel()
	for _, breaker := range []bool{true, false} {
		bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
			s := newTable(t)
			s.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				return s.decide(ctx, requests)
			}
			limiter := newLimiter(t, s, func(c *pglimit.Config) { change(c); c.Timeout, c.Breaker.Off = time.Second, !breaker })
			release := s.hold("held")
			time.AfterFunc(500*time.Millisecond, release)
			decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 held:1 b:2 held:2")...)
			if got := granted(decisions); err != nil || got != "1/0 1/0 2/0 2/0" {
				t.Errorf("%s, %v", got, err)
			}
			var order []int64
			for _, call := range s.taken {
				if call[0].Key == "held" && len(call) == 1 && !call[0].Impatient {
					order = append(order, call[0].Tokens)
				}
			}
			var c pglimit.Config
			if change(&c); c.Combine.Off && !slices.Equal(order, []int64{1, 2}) {
				t.Errorf("patiently asked for %v", order)
			}
			defer s.hold("held")()
			decisions, err = limiter.DoEach(t.Context(), wants(t, "held:1 a:1 b:2")...)
			if got := granted(decisions); got != "-/0 1/0 2/0" || err == nil || !strings.HasPrefix(err.Error(), "request 0: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %v", got, err)
			}
			if stats := limiter.Stats(); stats.Open != 0 {
				t.Errorf("%+v", stats)
			}
			later(time.Second)
		})
	}
}

// Where there is no room for all of its requests, none is asked about: each of them waits.
func TestTakeOfMoreThanMayWait(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		strategy := &fake{take: grantAll}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { change(c); c.MaxWaiting = 2 })
		decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 b:1 c:1 d:1")...)
		if got := granted(decisions); got != "-/0 -/0 -/0 -/0" || !errors.Is(err, pglimit.ErrOverloaded) || strings.Count(err.Error(), "request ") != 4 || len(strategy.taken) > 0 {
			t.Errorf("%s, %v", got, err)
		}
		if decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 b:1")...); err != nil || granted(decisions) != "1/0 1/0" {
			t.Errorf("when there is room again: %v, %v", decisions, err)
		}
		if stats := limiter.Stats(); stats.Waiting != 0 || stats.Failed[pglimit.CauseOverloaded] != 4 {
			t.Errorf("%+v", stats)
		}
	})
}

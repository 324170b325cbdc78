package pglimit_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit"
)

// sent is what each call asked for: "api/a:1@10/1s".
func (f *fake) sent() (calls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, requests := range f.taken {
		var call string
		for _, r := range requests {
			call += fmt.Sprintf(" %s/%s:%d@%v", r.Limiter, r.Key, r.Tokens, r.Limit)
		}
		calls = append(calls, call[1:])
	}
	return calls
}

var pro = pglimit.PerSecond(100)

// A request's own limit and limiter name reach the strategy, and are in the decision. What is
// left out is the Limiter's own. All go out in one call.
func TestALimitAndALimiterNameOfTheRequest(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		strategy := &fake{take: grantAll}
		limiter := newLimiter(t, strategy, change)
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Limit: pro, Tokens: 1}); err != nil || !d.Allowed || d.Limit != pro || d.Limiter != "api" || d.Key != "a" {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Limit: pro, Tokens: 100}); err != nil || d.Granted != 100 || d.Limit != pro {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Limit: pglimit.Limit{}, Tokens: 1}); err != nil || !d.Allowed || d.Limit != limiter.Limit() {
			t.Errorf("%+v, %v", d, err)
		}
		requests := []pglimit.Request{
			{Key: "a", Tokens: 1}, {Key: "b", Tokens: 50, Limit: pro}, {Key: "b", Limit: pro}, {Limiter: "daily", Key: "a", Tokens: 1, Limit: pglimit.PerHour(7)}, {Limiter: "api", Key: "a", Tokens: 2},
		}
		before := slices.Clone(requests)
		decisions, err := limiter.DoEach(t.Context(), requests...)
		if err != nil || !slices.Equal(requests, before) {
			t.Errorf("%v; the requests are %+v", err, requests)
		}
		for i, want := range []pglimit.Decision{
			{Limiter: "api", Key: "a", Limit: limiter.Limit()}, {Limiter: "api", Key: "b", Limit: pro}, {Limiter: "api", Key: "b", Limit: pro},
			{Limiter: "daily", Key: "a", Limit: pglimit.PerHour(7)}, {Limiter: "api", Key: "a", Limit: limiter.Limit()},
		} {
			if d := decisions[i]; d.Limiter != want.Limiter || d.Key != want.Key || d.Limit != want.Limit || !d.Allowed {
				t.Errorf("%d: %+v", i, d)
			}
		}
		want := []string{
			"api/a:1@100/1s", "api/a:100@100/1s", "api/a:1@10/1s burst 20",
			"api/a:1@10/1s burst 20 api/b:50@100/1s api/b:0@100/1s daily/a:1@7/1h api/a:2@10/1s burst 20",
		}
		if got := strategy.sent(); !slices.Equal(got, want) {
			t.Errorf("%q\nwant %q", got, want)
		}
	})
}

// Requests of one Take for one bucket under different limits go out in several calls, in their
// order.
func TestOneBucketUnderTwoLimitsInOneTake(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		strategy := &fake{take: buckets(map[string]int64{"a": 6})}
		limiter := newLimiter(t, strategy, change)
		decisions, err := limiter.DoEach(t.Context(),
			pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "a", Tokens: 2, Limit: pro}, pglimit.Request{Key: "a", Tokens: 3}, pglimit.Request{Limiter: "other", Key: "a", Limit: pro})
		if err != nil || granted(decisions[:3]) != "1/5 2/3 3/0" {
			t.Errorf("%s, %v", granted(decisions), err)
		}
		if calls := strategy.sent(); len(calls) != 3 || calls[1][:len("api/a:2@100/1s")] != "api/a:2@100/1s" {
			t.Errorf("%q", calls)
		}
	})
}

// A limit that is not valid, or that the strategy cannot keep, takes nothing and changes nothing.
func TestALimitThatCannotBeKept(t *testing.T) {
	t.Parallel()
	strategy := &fake{check: func(limit pglimit.Limit) error {
		if limit.Burst > 20 {
			return &pglimit.LimitError{Limit: limit, Field: "Burst", Why: fmt.Sprintf("is %d: it must be at most 20", limit.Burst)}
		}
		return nil
	}}
	limiter := newLimiter(t, strategy, nil)
	own := limiter.Limit()
	for _, test := range []struct {
		limit pglimit.Limit
		says  string
	}{
		{pglimit.Limit{Tokens: -1, Period: time.Second, Burst: 1}, "pglimit: Limit.Tokens is -1: it must be at least 1"},
		{pglimit.PerSecond(10).WithBurst(0), "pglimit: Limit.Burst is 0: it must be at least 1 (Tokens, 10, is usual)"},
		{pglimit.PerSecond(21), "pglimit: Limit.Burst is 21: it must be at most 20"},
	} {
		_, allow := limiter.Do(t.Context(), pglimit.Request{Key: "a", Limit: test.limit, Tokens: 1})
		_, take := limiter.DoEach(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "a", Tokens: 1, Limit: test.limit})
		set := limiter.SetLimit(test.limit)
		for _, got := range []struct {
			err  error
			says string
		}{{allow, test.says}, {take, "request 1: " + test.says}, {set, test.says}} {
			var bad *pglimit.LimitError
			if err := got.err; !errors.As(err, &bad) || bad.Limit != test.limit || err.Error() != got.says {
				t.Errorf("%v", err)
			}
		}
	}
	if err := limiter.SetLimit(pglimit.Limit{}); err == nil {
		t.Error("no limit")
	}
	if _, err := limiter.Do(t.Context(), pglimit.Request{Key: "a", Limit: pglimit.PerSecond(5), Tokens: 6}); err == nil || err.Error() != "pglimit: Request.Tokens is 6: more than the burst of 5 (5/1s) could never be granted" {
		t.Error(err)
	}
	if len(strategy.taken) != 0 || limiter.Limit() != own {
		t.Errorf("sent %v, %v", strategy.sent(), limiter.Limit())
	}
}

// SetLimit counts for all later requests, also in transactions and on connections that there were
// before, and not for those under way.
func TestSetLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(grantAll)
		c := combining(t, s, nil)
		in, on := c.limiter.On(pglimit.InTx(pglimitTx{})), c.limiter.On(pglimit.OnConn(new(pgx.Conn)))
		first, queued := c.ask(t.Context(), "a", 1), c.ask(t.Context(), "a", 1)
		if err := c.limiter.SetLimit(pro); err != nil {
			t.Fatal(err)
		}
		later := c.ask(t.Context(), "a", 1)
		for _, l := range []*pglimit.Limiter{c.limiter, in, on} {
			if l.Limit() != pro {
				t.Errorf("%v", l.Limit())
			}
		}
		for range 3 {
			s.finish()
		}
		own := pglimit.PerSecond(10).WithBurst(20)
		if first.Limit != own || queued.Limit != own || later.Limit != pro || len(s.taken) != 3 {
			t.Errorf("%+v, %+v, %+v, %d calls", first, queued, later, len(s.taken))
		}
		go func() { _, _ = in.Allow(t.Context(), "a") }()
		synctest.Wait()
		s.finish()
		if calls := s.sent(); calls[3] != "api/a:1@100/1s" {
			t.Errorf("%q", calls)
		}
	})
}

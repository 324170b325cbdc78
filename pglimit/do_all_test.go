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

// grouping is a fake that grants all of a group.
func grouping() *fake {
	return &fake{able: true, take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		decisions, err := grantAll(ctx, requests)
		for i := range decisions {
			decisions[i].Remaining = 7
		}
		return decisions, err
	}}
}

// groups are what each call asked for, such as "api/a:1 org/b:2".
func (f *fake) groups() (calls []string) {
	for _, requests := range f.taken {
		var texts []string
		for _, r := range requests {
			texts = append(texts, fmt.Sprintf("%s/%s:%d", r.Limiter, r.Key, r.Tokens))
		}
		calls = append(calls, strings.Join(texts, " "))
	}
	return calls
}

// denies makes a take of a group: those with RetryAfter lack tokens.
func denies(retryAfter ...time.Duration) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(context.Context, []rate.Request) (decisions []pglimit.Decision, err error) {
		for _, after := range retryAfter {
			decisions = append(decisions, pglimit.Decision{Allowed: after == 0, RetryAfter: after, ResetAfter: after})
		}
		return decisions, nil
	}
}

func TestDoAllCompletesItsRequests(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{true, false} {
		s := grouping()
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Durability = off, pglimit.Durable })
		day := pglimit.PerHour(24)
		g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "a", Limiter: "api/day", Limit: day, Tokens: 3}, pglimit.Request{Key: "b", Tokens: 2, Unit: 2})
		if err != nil || !g.Allowed || g.RetryAfter != 0 || g.Denied != (pglimit.Decision{}) || len(g.Decisions) != 3 {
			t.Fatalf("%+v, %v", g, err)
		}
		if want := "api/a:1 api/day/a:3 api/b:2"; len(s.taken) != 1 || s.groups()[0] != want {
			t.Errorf("asked %q, want %q", s.groups(), want)
		}
		if d := g.Decisions[1]; d.Granted != 3 || d.Remaining != 7 || d.Limiter != "api/day" || d.Key != "a" || d.Limit != day || d.Source != pglimit.FromDatabase {
			t.Errorf("%+v", d)
		}
		stats := limiter.Stats()
		if stats.Allowed.Total() != 1 || stats.Denied.Total() != 0 || stats.RoundTrips != 1 || stats.Requests != 3 {
			t.Errorf("%+v", stats)
		}
	}
}

// The answer says which limit denied, and when all would grant.
func TestDoAllSaysWhoDenied(t *testing.T) {
	t.Parallel()
	s := grouping()
	s.take = denies(time.Second, time.Minute, 0)
	limiter := newLimiter(t, s, nil)
	g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "org", Tokens: 1}, pglimit.Request{Key: "all", Tokens: 1})
	if err != nil || g.Allowed || g.RetryAfter != time.Minute || g.Denied.Key != "org" || g.Denied.Limiter != "api" || g.Decisions[0].RetryAfter != time.Second || !g.Decisions[2].Allowed {
		t.Errorf("%+v, %v", g, err)
	}
	if stats := limiter.Stats(); stats.Denied.Total() != 1 || stats.Allowed.Total() != 0 {
		t.Errorf("%+v", stats)
	}
}

func TestBadGroupsAreErrors(t *testing.T) {
	t.Parallel()
	s := grouping()
	s.check = func(limit pglimit.Limit) error {
		if limit.Burst == 99 {
			return &pglimit.LimitError{Limit: limit, Field: "Burst", Why: "is 99"}
		}
		return nil
	}
	limiter := newLimiter(t, s, nil)
	day := pglimit.PerHour(24)
	for says, requests := range map[string][]pglimit.Request{
		"DoAll of 0 requests: a group has 1 to 1000":                                     nil,
		"DoAll of 1001 requests":                                                         make([]pglimit.Request, 1001),
		"request 1: pglimit: Request.Key is empty":                                       {{Key: "a", Tokens: 1}, {Tokens: 1}},
		`Request.Key "a" is asked for twice: ask once, for the Tokens of both (1 and 2)`: {{Key: "a", Tokens: 1}, {Key: "b", Tokens: 1}, {Key: "a", Tokens: 2}},
		`give one of them another Request.Limiter, such as "api/day"`:                    {{Key: "a", Tokens: 1}, {Key: "a", Limit: day, Tokens: 1}},
		"request 1: pglimit: Request.Tokens is 0: it must be at least 1":                 {{Key: "a", Tokens: 1}, {Key: "b", Unit: 1}},
		"Request.Unit is 1: leave it out":                                                {{Key: "a", Tokens: 2, Unit: 1}},
		"Request.Unit is 2: leave it out":                                                {{Key: "a", Tokens: 4, Unit: 2}},
		"Request.Ahead is 1s: a group takes what is there, or waits with MaxWait":        {{Key: "a", Tokens: 1, Ahead: time.Second}},
		`Request.ID is "x": a request of a group cannot have one`:                        {{Key: "a", Tokens: 1, ID: "x"}},
		"Request.Tokens is 21: more than the burst of 20":                                {{Key: "a", Tokens: 21}},
		"Request.Tokens is -1: it must not be negative":                                  {{Key: "a", Tokens: -1}},
		"Limit.Burst is 99":    {{Key: "a", Tokens: 1, Limit: day.WithBurst(99)}},
		"Limit.Period is -1ns": {{Key: "a", Tokens: 1, Limit: pglimit.Limit{Tokens: 1, Period: -1, Burst: 1}}},
	} {
		if g, err := limiter.DoAll(t.Context(), requests...); err == nil || !strings.Contains(err.Error(), says) || g.Allowed {
			t.Errorf("%.500s: %v: want %q", fmt.Sprint(requests), err, says)
		}
	}
	if len(s.taken) > 0 {
		t.Errorf("asked %q", s.groups())
	}
	if _, err := newLimiter(t, &fake{}, nil).DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// A group is denied from memory if one of its buckets is known to lack tokens: the buckets that
// lacked them in the denial of a group, and no others.
func TestTheMemoryDeniesGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouping()
		s.take = denies(time.Second, 0)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Memory.Off, c.Memory.TTL = false, time.Minute })
		allowAll := func(keys ...string) pglimit.Group {
			t.Helper()
			var requests []pglimit.Request
			for _, key := range keys {
				requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
			}
			g, err := limiter.DoAll(t.Context(), requests...)
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		allowAll("empty", "full")
		s.take = grantAll
		later(300 * time.Millisecond)
		g := allowAll("other", "empty")
		if g.Allowed || g.Denied.Key != "empty" || g.Denied.Source != pglimit.FromMemory || g.RetryAfter > 701*time.Millisecond || g.RetryAfter < 699*time.Millisecond || g.RetryAfter != g.Denied.RetryAfter {
			t.Errorf("%+v", g)
		}
		if unknown := g.Decisions[0]; !unknown.Allowed || unknown.Remaining != 0 || unknown.Granted != 0 {
			t.Errorf("%+v", unknown)
		}
		if g := allowAll("other", "full"); !g.Allowed {
			t.Errorf("%+v", g)
		}
		if d, err := limiter.Allow(t.Context(), "empty"); err != nil || d.Source != pglimit.FromMemory {
			t.Errorf("%+v, %v", d, err)
		}
		if stats := limiter.Stats(); stats.Denied[pglimit.FromMemory] != 2 || len(s.taken) != 2 {
			t.Errorf("%+v, asked %q", stats, s.groups())
		}
		// Another limiter's bucket of the same key is another bucket.
		if g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "empty", Limiter: "other", Tokens: 1}); err != nil || !g.Allowed {
			t.Errorf("%+v, %v", g, err)
		}
		later(time.Second)
		if g := allowAll("other", "empty"); !g.Allowed {
			t.Errorf("%+v", g)
		}
	})
}

// What OnError makes of the requests of a group is made of the group: granted, if all are.
func TestTheFallbackOfAGroup(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("%w: away", pglimit.ErrUnavailable)
	partly := func(_ context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
		return pglimit.Decision{Allowed: failed.Request.Key == "a", Granted: failed.Request.Tokens}, nil
	}
	for name, test := range map[string]struct {
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		allowed bool
		after   time.Duration
	}{
		"open":   {pglimit.FailOpen, true, 0},
		"closed": {pglimit.FailClosed, false, time.Second},
		"partly": {partly, false, 0},
	} {
		s := grouping()
		s.take = fail(away)
		limiter := newLimiter(t, s, func(c *pglimit.Config) { c.OnError = test.onError })
		g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 2})
		if err != nil || g.Allowed != test.allowed || g.RetryAfter != test.after || g.Decisions[0].Source != pglimit.FromFallback {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
		for i, n := range []int64{1, 2} {
			if got := g.Decisions[i].Granted; got != n && test.allowed || got != 0 && !test.allowed {
				t.Errorf("%s: %d granted", name, got)
			}
		}
		if stats := limiter.Stats(); stats.Failed[pglimit.CauseUnavailable] != 1 || stats.Allowed.Total()+stats.Denied.Total() != 1 {
			t.Errorf("%s: %+v", name, stats)
		}
	}
	s := grouping()
	s.take = fail(away)
	if _, err := newLimiter(t, s, nil).DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}); !errors.Is(err, away) {
		t.Error(err)
	}
	refuses := newLimiter(t, s, func(c *pglimit.Config) {
		c.OnError = func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			return pglimit.Decision{}, errNothing
		}
	})
	if _, err := refuses.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}); !errors.Is(err, errNothing) {
		t.Error(err)
	}
}

// FailLocal decides a group by the requests that it is handed, also if a function of the user's has changed them.
func TestFailLocalDecidesAGroupByChangedRequests(t *testing.T) {
	t.Parallel()
	s := grouping()
	s.take = fail(pglimit.ErrUnavailable)
	local := pglimit.FailLocal(1)
	limiter := newLimiter(t, s, func(c *pglimit.Config) {
		c.OnError = func(ctx context.Context, failed pglimit.Failure) (pglimit.Decision, error) {
			failed.Request.Limit = pglimit.PerHour(1)
			return local(ctx, failed)
		}
	})
	for i, want := range []bool{true, false} {
		g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 1})
		if err != nil || g.Allowed != want {
			t.Errorf("%d: %+v, %v", i, g, err)
		}
	}
}

var errNothing = errors.New("nothing")

// Decisions that cannot be are errors.
func TestNonsenseAboutAGroupIsAnError(t *testing.T) {
	t.Parallel()
	granted := pglimit.Decision{Allowed: true, Granted: 1}
	for name, decisions := range map[string][]pglimit.Decision{
		"no decisions": {},
		"a part":       {granted, {}},
		"too many":     {granted, granted, granted},
		"too much":     {granted, {Allowed: true, Granted: 2}},
		"negative":     {{RetryAfter: -1}, {}},
	} {
		s := grouping()
		s.take = func(context.Context, []rate.Request) ([]pglimit.Decision, error) { return decisions, nil }
		if g, err := newLimiter(t, s, nil).DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 1}); err == nil {
			t.Errorf("%s: %+v", name, g)
		}
	}
}

// A group counts as one caller. Its time is limited, and the end of the Limiter is its end.
func TestAGroupWaitsAsOneCaller(t *testing.T) {
	t.Parallel()
	for _, off := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := grouping()
			s.take = until(context.Context.Err)
			limiter := newLimiter(t, s, func(c *pglimit.Config) { c.Combine.Off, c.Timeout, c.MaxWaiting = off, time.Second, 1 })
			group := []pglimit.Request{{Key: "a", Tokens: 1}, {Key: "b", Tokens: 1}, {Key: "c", Tokens: 1}}
			failed := make(chan error, 1)
			go func() {
				_, err := limiter.DoAll(t.Context(), group...)
				failed <- err
			}()
			synctest.Wait()
			if waiting := limiter.Stats().Waiting; waiting != 1 {
				t.Errorf("%d are waiting", waiting)
			}
			if _, err := limiter.DoAll(t.Context(), group...); !errors.Is(err, pglimit.ErrOverloaded) {
				t.Error(err)
			}
			if err := <-failed; !errors.Is(err, pglimit.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := limiter.DoAll(t.Context(), group...); !errors.Is(err, pglimit.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// FailLocal takes a group whole or not at all.
func TestFailLocalTakesNoPartOfAGroup(t *testing.T) {
	t.Parallel()
	slow := pglimit.Every(1000 * time.Hour)
	s := &fake{able: true, take: fail(pglimit.ErrUnavailable)}
	limiter := newLimiter(t, s, func(c *pglimit.Config) { c.OnError, c.Limit = pglimit.FailLocal(1), slow.WithBurst(10) })
	plenty, few := pglimit.Request{Key: "plenty", Tokens: 2}, pglimit.Request{Key: "few", Limit: slow.WithBurst(3), Tokens: 1}
	for i := range 5 {
		g, err := limiter.DoAll(t.Context(), plenty, few)
		denied := !g.Allowed && g.Denied.Key == "few" && g.Decisions[0].Allowed
		if err != nil || g.Allowed != (i < 3) || denied != (i >= 3) {
			t.Errorf("%d: %+v, %v", i, g, err)
		}
	}
	if d, err := limiter.Peek(t.Context(), "plenty"); err != nil || d.Remaining != 4 {
		t.Errorf("%+v, %v", d, err)
	}
}

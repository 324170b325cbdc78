package pglimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
)

// ahead asks for tokens that may come within that time.
func (c callers) ahead(ctx context.Context, key string, tokens int64, ahead time.Duration) *heard {
	h := new(heard)
	go func() {
		var decisions []pglimit.Decision
		if decisions, h.err = c.limiter.DoEach(ctx, pglimit.Request{Key: key, Tokens: tokens, Ahead: ahead}); len(decisions) > 0 {
			h.Decision = decisions[0]
		}
	}()
	synctest.Wait()
	return h
}

// reservingServer answers when the test says so.
type reservingServer struct {
	*reserving
	*server
}

func newReservingServer() reservingServer {
	s := reservingServer{reserving: newReserving()}
	s.server = newServer(func(ctx context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		return s.reserving.Take(ctx, nil, requests)
	})
	return s
}

func (s reservingServer) Name() string                   { return "reserving" }
func (s reservingServer) Check(r *pglimit.Request) error { return s.reserving.Check(r) }
func (s reservingServer) Rule() pglimit.Rule             { return bucket.Rule{} }
func (s reservingServer) Take(ctx context.Context, session pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
	return s.server.Take(ctx, session, requests)
}

func (s reservingServer) GiveBack(ctx context.Context, session pglimit.Session, refunds []pglimit.Refund) error {
	return s.reserving.GiveBack(ctx, session, refunds)
}

// Requests with equal Ahead become one, and each caller hears when its own tokens are due.
func TestReservationsAreCombined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReservingServer()
		c := combining(t, s, func(c *pglimit.Config) { c.Limit = pglimit.PerSecond(10).WithBurst(2) })
		busy := c.ask(t.Context(), "other", 1)
		a, b := c.ahead(t.Context(), "k", 1, time.Second), c.ahead(t.Context(), "k", 1, time.Second)
		d, e := c.ahead(t.Context(), "k", 1, time.Second), c.ahead(t.Context(), "k", 1, 100*ms)
		f, g := c.ask(t.Context(), "k", 1), c.ahead(t.Context(), "k", 2, time.Second)
		s.finish()
		s.finish()
		if !busy.Allowed || len(s.calls) != 2 || len(s.calls[1]) != 4 || s.calls[1][0].Tokens != 3 {
			t.Fatalf("%+v", s.calls)
		}
		for name, test := range map[string]struct {
			got              *heard
			granted, remains int64
			delay, retry     time.Duration
		}{
			"the first": {a, 1, 1, 0, 0}, "the second": {b, 1, 0, 0, 100 * ms}, "the third": {d, 1, 0, 100 * ms, 200 * ms},
			"with less patience": {e, 0, 0, 0, 200 * ms}, "with none": {f, 0, 0, 0, 200 * ms}, "the last": {g, 2, 0, 300 * ms, 500 * ms},
		} {
			if h := test.got; h.err != nil || h.Granted != test.granted || h.Remaining != test.remains || h.Delay != test.delay || h.RetryAfter != test.retry {
				t.Errorf("%s: %+v", name, h)
			}
		}
	})
}

// What was reserved for a caller who has left goes to who may wait as long, not to others; and the
// rest is given back.
func TestWhatComesLaterIsNotPassedOnToTheImpatient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		ahead time.Duration
		gets  bool
	}{{0, false}, {199 * ms, false}, {200 * ms, true}, {time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newReservingServer()
			c := combining(t, s, func(c *pglimit.Config) { c.Limit = pglimit.PerSecond(10).WithBurst(1) })
			first := c.ask(t.Context(), "k", 1)
			s.finish()
			c.ahead(t.Context(), "k", 1, time.Second)
			s.finish()
			c.ask(t.Context(), "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			left := c.ahead(ctx, "k", 1, time.Second) // would be due after 200 ms
			s.finish()
			next := c.ahead(t.Context(), "k", 1, test.ahead)
			leave()
			synctest.Wait()
			s.finish()
			if !first.Allowed || left.Allowed {
				t.Errorf("%+v, %+v", first, left)
			}
			if test.gets {
				if next.err != nil || next.Delay != 200*ms || len(s.calls) != 4 || len(s.refunds) != 0 {
					t.Errorf("%v: %+v, %d calls, %+v", test.ahead, next, len(s.calls), s.refunds)
				}
				return
			}
			if len(s.refunds) != 1 || s.refunds[0][0].Delay != 200*ms {
				t.Errorf("%v: %+v", test.ahead, s.refunds)
			}
			s.finish()
			if next.err != nil || next.Delay > test.ahead || next.Allowed && next.Delay != 0 {
				t.Errorf("%v: %+v", test.ahead, next)
			}
		})
	}
}

// The memory answers a request that may wait only if it would wait too long.
func TestTheMemoryKnowsWhoMayWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReserving()
		limiter := waiting(t, s, func(c *pglimit.Config) { c.Limit = pglimit.PerSecond(1).WithBurst(2) })
		take := func(tokens int64, ahead time.Duration) pglimit.Decision {
			d, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: tokens, Ahead: ahead})
			if err != nil {
				t.Fatal(err)
			}
			return d[0]
		}
		take(1, 0)
		take(1, 0)
		time.Sleep(500 * ms)
		for _, test := range []struct {
			tokens int64
			ahead  time.Duration
			source pglimit.Source
		}{
			{1, 0, pglimit.FromMemory}, {1, 490 * ms, pglimit.FromMemory}, {2, 490 * ms, pglimit.FromMemory},
			{2, 1490 * ms, pglimit.FromDatabase}, // how long it takes is certain only for as many as were asked for
			{2, 1490 * ms, pglimit.FromMemory}, {1, 500 * ms, pglimit.FromDatabase},
		} {
			if d := take(test.tokens, test.ahead); d.Source != test.source || d.Allowed != (test.ahead == 500*ms) {
				t.Errorf("%d within %v: %+v", test.tokens, test.ahead, d)
			}
		}
	})
}

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

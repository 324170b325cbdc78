package strategytest

import (
	"context"
	"errors"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func cancelled(s *suite) {
	limit := slow(1)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := s.strategy.Take(ctx, s.session, []rate.Request{s.ask("k", limit, 1, 1)}); !errors.Is(err, context.Canceled) {
		s.Errorf("the error is %v, want context.Canceled", err)
	}
	s.has("k", limit, 1)
}

// Cancelled between two requests of a call in the caller's transaction, which goes on.
func cancelledInTransaction(s *suite) {
	limit := slow(1)
	tx := s.begin()
	for statements := range 8 {
		ctx, cancel := context.WithCancel(s.Context())
		sent := 0
		interrupted := &watched{Session: tx, before: func() {
			if sent++; sent > statements {
				cancel()
			}
		}}
		_, err := s.strategy.Take(ctx, interrupted, []rate.Request{s.ask("l", limit, 1, 1), s.ask("m", limit, 1, 1)})
		cancel()
		if err == nil {
			break
		}
		if d := s.takeAll(tx, s.ask("l", limit, 0, 1), s.ask("m", limit, 0, 1)); !d[0].Allowed || !d[1].Allowed {
			s.Errorf("a Take that was cut off after %d statements, and failed, took tokens all the same: %+v", statements, d)
		}
	}
}

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
		_, err := s.strategy.Take(ctx, &interrupted{Session: tx, after: statements, cancel: cancel}, []rate.Request{s.ask("l", limit, 1, 1), s.ask("m", limit, 1, 1)})
		cancel()
		if err == nil {
			break
		}
		if d := s.takeAll(tx, s.ask("l", limit, 0, 1), s.ask("m", limit, 0, 1)); !d[0].Allowed || !d[1].Allowed {
			s.Errorf("a Take that was cut off after %d statements, and failed, took tokens all the same: %+v", statements, d)
		}
	}
}

// interrupted is a session whose caller gives up after that many statements have been sent.
type interrupted struct {
	rate.Session
	after  int
	cancel context.CancelFunc
}

func (i *interrupted) count() {
	if i.after--; i.after < 0 {
		i.cancel()
	}
}

func (i *interrupted) Exec(ctx context.Context, sql string, args ...any) (int64, error) {
	i.count()
	return i.Session.Exec(ctx, sql, args...)
}

func (i *interrupted) Row(ctx context.Context, sql string, args []any, into ...any) error {
	i.count()
	return i.Session.Row(ctx, sql, args, into...)
}

func (i *interrupted) Pipeline(ctx context.Context, statements ...rate.Statement) (int, error) {
	i.count()
	return i.Session.Pipeline(ctx, statements...)
}

func (i *interrupted) OneConnection(_ context.Context, f func(rate.Session) error) error { return f(i) }

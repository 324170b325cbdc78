package pglimit

import (
	"context"
	"fmt"

	"github.com/pglimit/ratelimit/internal/session"
)

// sign asks Postgres for a sign of life.
func (l *Limiter) sign(ctx context.Context) error {
	err := l.guard(func() error { return session.Sign(ctx, l.session) })
	if err != nil {
		return fmt.Errorf("%w: no sign of life: %w", ErrUnavailable, err)
	}
	return nil
}

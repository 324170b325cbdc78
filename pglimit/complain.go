package pglimit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// complainEvery so often at most about failures of one kind.
const complainEvery = 10 * time.Second

// complaints are logged: the first failure of a kind at once, and while they go on a line
// per interval, which says how many there were.
type complaints struct {
	logger *slog.Logger // nil: nobody listens
	mu     sync.Mutex
	kinds  map[string]*complaint
}

type complaint struct {
	last     time.Time
	failures int64 // since the last line
}

// kindOf a failure, and how bad it is: what somebody has to set right does not end by itself.
func kindOf(err error) (kind string, level slog.Level) {
	switch {
	case errors.Is(err, ErrNotMigrated):
		return "not migrated", slog.LevelError
	case errors.Is(err, ErrPermission):
		return "permission", slog.LevelError
	case errors.Is(err, ErrOverloaded):
		return "overloaded", slog.LevelWarn
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout", slog.LevelWarn
	case errors.Is(err, ErrUnavailable):
		return "unavailable", slog.LevelWarn
	case errors.Is(err, ErrNothingTaken):
		return "refused", slog.LevelWarn
	}
	return "other", slog.LevelWarn
}

// hear of a request that failed. The key is not logged: it may be somebody's name.
func (c *complaints) hear(ctx context.Context, limiter string, err error) {
	if c.logger == nil {
		return
	}
	kind, level := kindOf(err)
	now := time.Now()
	c.mu.Lock()
	if c.kinds == nil {
		c.kinds = make(map[string]*complaint)
	}
	one, known := c.kinds[kind]
	if !known {
		one = new(complaint)
		c.kinds[kind] = one
	}
	one.failures++
	if known && now.Sub(one.last) < complainEvery {
		c.mu.Unlock()
		return
	}
	failures := one.failures
	one.last, one.failures = now, 0
	c.mu.Unlock()
	c.logger.LogAttrs(context.WithoutCancel(ctx), level, "pglimit: no decision is known",
		slog.String("limiter", limiter), slog.String("kind", kind), slog.Int64("failures", failures), slog.String("error", err.Error()))
}

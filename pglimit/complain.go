package pglimit

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// complainEvery is how often failures of one cause are logged at most.
const complainEvery = 10 * time.Second

// complaints logs the first failure of a cause at once, then a line per interval, with the
// number of failures.
type complaints struct {
	logger  *slog.Logger // nil: nothing is logged
	limiter string
	keys    bool // whether keys are logged

	mu     sync.Mutex
	causes [len(causes)]complaint

	opened time.Time // when a line last said that the breaker has
	told   bool      // that it has closed again is still to be said
	why    error     // it opened the last time
}

type complaint struct {
	last     time.Time // zero: never
	failures int64     // since the last line
}

// hear of a request that failed.
func (c *complaints) hear(ctx context.Context, key string, cause Cause, err error) {
	if c.logger == nil {
		return
	}
	if cause == CauseBreaker { // if that is not logged yet, because it has opened and closed before
		c.circuit(true, nil)
	}
	now := time.Now()
	c.mu.Lock()
	one := &c.causes[cause]
	one.failures++
	failures, due := one.failures, one.last.IsZero() || now.Sub(one.last) >= complainEvery
	if due {
		one.last, one.failures = now, 0
	}
	c.mu.Unlock()
	if !due {
		return
	}
	attrs := []slog.Attr{slog.String("cause", cause.String()), slog.Int64("failures", failures), slog.String("error", err.Error())}
	if c.keys {
		attrs = append(attrs, slog.String("key", key))
	}
	c.log(ctx, cause.level(), "pglimit: no decision is known", attrs...)
}

// circuit logs a change of the circuit breaker. why is the last failure, nil if that has been
// told before.
func (c *complaints) circuit(open bool, why error) {
	if c.logger == nil {
		return
	}
	now := time.Now()
	c.mu.Lock()
	c.why = cmp.Or(why, c.why)
	why = c.why // nil if a caller is refused before the breaker has said why
	due := open && why != nil && !c.told && (c.opened.IsZero() || now.Sub(c.opened) >= complainEvery)
	ended := !open && c.told
	if due {
		c.opened = now
	}
	c.told = open && (due || c.told)
	c.mu.Unlock()
	switch {
	case due:
		c.log(context.Background(), slog.LevelWarn, "pglimit: Postgres does not answer; until it does, requests fail at once", slog.String("error", why.Error()))
	case ended:
		c.log(context.Background(), slog.LevelInfo, "pglimit: Postgres answers again")
	}
}

func (c *complaints) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	c.logger.LogAttrs(context.WithoutCancel(ctx), level, message, append([]slog.Attr{slog.String("limiter", c.limiter)}, attrs...)...)
}

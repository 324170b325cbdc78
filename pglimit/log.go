package pglimit

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// logEvery is how often failures of one cause are logged at most.
const logEvery = 10 * time.Second

// failureLog logs the first failure of a cause at once, then a line per interval, with the
// number of failures.
type failureLog struct {
	logger  *slog.Logger // nil: nothing is logged
	limiter string
	keys    bool // whether keys are logged

	mu     sync.Mutex
	causes [len(causes)]causeLog

	opened time.Time // when a line last said that the breaker has
	told   bool      // that it has closed again is still to be said
	why    error     // it opened the last time
}

type causeLog struct {
	last     time.Time // zero: never
	failures int64     // since the last line
}

// failed logs a request that failed.
func (f *failureLog) failed(ctx context.Context, key string, cause Cause, err error) {
	if f.logger == nil {
		return
	}
	if cause == CauseBreaker { // if that is not logged yet, because it has opened and closed before
		f.circuit(true, nil)
	}
	now := time.Now()
	f.mu.Lock()
	one := &f.causes[cause]
	one.failures++
	failures, due := one.failures, one.last.IsZero() || now.Sub(one.last) >= logEvery
	if due {
		one.last, one.failures = now, 0
	}
	f.mu.Unlock()
	if !due {
		return
	}
	attrs := []slog.Attr{slog.String("cause", cause.String()), slog.Int64("failures", failures), slog.String("error", err.Error())}
	if f.keys {
		attrs = append(attrs, slog.String("key", key))
	}
	f.log(ctx, cause.level(), "pglimit: no decision is known", attrs...)
}

// circuit logs a change of the circuit breaker. why is the last failure, nil if that has been
// told before.
func (f *failureLog) circuit(open bool, why error) {
	if f.logger == nil {
		return
	}
	now := time.Now()
	f.mu.Lock()
	f.why = cmp.Or(why, f.why)
	why = f.why // nil if a caller is refused before the breaker has said why
	due := open && why != nil && !f.told && (f.opened.IsZero() || now.Sub(f.opened) >= logEvery)
	ended := !open && f.told
	if due {
		f.opened = now
	}
	f.told = open && (due || f.told)
	f.mu.Unlock()
	switch {
	case due:
		f.log(context.Background(), slog.LevelWarn, "pglimit: Postgres does not answer; until it does, requests fail at once", slog.String("error", why.Error()))
	case ended:
		f.log(context.Background(), slog.LevelInfo, "pglimit: Postgres answers again")
	}
}

func (f *failureLog) log(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	f.logger.LogAttrs(context.WithoutCancel(ctx), level, message, append([]slog.Attr{slog.String("limiter", f.limiter)}, attrs...)...)
}

// adjust says that Config.Adjust fails, or that it does no longer.
func (f *failureLog) adjust(percent int64, err error) {
	switch {
	case f.logger == nil:
	case err != nil:
		f.log(context.Background(), slog.LevelError, "pglimit: Config.Adjust gives no share of the limits: that of before holds",
			slog.Int64("percent", percent), slog.String("error", err.Error()))
	default:
		f.log(context.Background(), slog.LevelInfo, "pglimit: Config.Adjust gives a share of the limits again")
	}
}

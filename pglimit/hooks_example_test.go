package pglimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// toStdout logs without the time, which differs from run to run.
func toStdout() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// An audit of who was denied. Of a busy service, log a part of them only.
func ExampleConfig_onDecision() {
	logger := toStdout()
	limiter, _ := pglimit.New(noDB{}, pglimittest.Memory(), pglimit.Config{
		Name:  "api",
		Limit: pglimit.PerSecond(10).WithBurst(1),
		OnDecision: func(ctx context.Context, r pglimit.Request, d pglimit.Decision, err error) {
			if err == nil && !d.Allowed && r.Tokens > 0 { // not of a peek
				logger.LogAttrs(ctx, slog.LevelInfo, "denied", slog.String("limiter", r.Limiter), slog.String("key", r.Key),
					slog.Duration("retry_after", d.RetryAfter.Round(100*time.Millisecond)), slog.String("source", d.Source.String()))
			}
		},
	})
	for range 3 {
		_, _ = limiter.Allow(context.Background(), "user:42")
	}
	// Output:
	// level=INFO msg=denied limiter=api key=user:42 retry_after=100ms source=memory
	// level=INFO msg=denied limiter=api key=user:42 retry_after=100ms source=memory
}

// Calls of Postgres that fail or are slow.
func ExampleConfig_onRoundTrip() {
	logger := toStdout()
	limiter, _ := pglimit.New(noDB{}, unreachable(), pglimit.Config{
		Name:  "api",
		Limit: pglimit.PerSecond(10),
		OnRoundTrip: func(ctx context.Context, trip pglimit.RoundTrip) {
			if trip.Err != nil || trip.Duration > 100*time.Millisecond {
				logger.LogAttrs(ctx, slog.LevelWarn, "a call of Postgres", slog.String("limiter", trip.Limiter), slog.String("operation", trip.Operation),
					slog.Int("requests", trip.Requests), slog.String("outcome", trip.Outcome), slog.Any("error", trip.Err))
			}
		},
	})
	_, err := limiter.Allow(context.Background(), "user:42")
	fmt.Println(err)
	// Output:
	// level=WARN msg="a call of Postgres" limiter=api operation=take requests=1 outcome=other error="connection refused"
	// connection refused
}

package strategies

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var _ rate.Pauser = TokenBucket{}

var (
	tokenBucketPause  = statement("token_bucket/pause.sql")
	tokenBucketPaused = statement("token_bucket/paused.sql")
)

// Pause writes the end of the pause into the row, which it locks, in one round trip. It waits for any call that holds
// the row.
func (TokenBucket) Pause(ctx context.Context, session rate.Session, r *rate.Request, length time.Duration) (time.Duration, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	var leasedNS int64
	err := postgres.Again(ctx, session, 5, func() error {
		return session.Row(ctx, tokenBucketPause, []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), int64(length), calendarOf(r),
			postgres.MannerOf(session, []rate.Request{*r}).Relaxed,
		}, &leasedNS)
	})
	return time.Duration(leasedNS), postgres.Explain(err)
}

// PausedUntil reads the row.
func (TokenBucket) PausedUntil(ctx context.Context, session rate.Session, limiter, key string) (time.Time, error) {
	var untilNS int64
	var hidden bool
	err := postgres.Again(ctx, session, 2, func() error {
		return session.Row(ctx, tokenBucketPaused, []any{key, limiter}, &untilNS, &hidden)
	})
	if err == nil && hidden {
		err = postgres.ErrHidden
	}
	return time.Unix(0, untilNS), postgres.Explain(err)
}

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
func (TokenBucket) Pause(
	ctx context.Context, session rate.Session, limiter, key string, length time.Duration, durability rate.Durability,
) (time.Duration, error) {
	// Only the names need validation: the limit is a placeholder.
	r := rate.Request{Limiter: limiter, Key: key, Limit: rate.PerSecond(1), Durability: durability}
	if err := r.Validate(); err != nil {
		return 0, err
	}
	var leasedNS int64
	err := postgres.Again(ctx, session, 5, func() error {
		return session.Row(ctx, tokenBucketPause, []any{
			key, limiter, int64(length), postgres.MannerOf(session, []rate.Request{r}).Relaxed,
		}, &leasedNS)
	})
	return time.Duration(leasedNS), postgres.Explain(err)
}

// Paused reads the row.
func (TokenBucket) Paused(ctx context.Context, session rate.Session, limiter, key string) (time.Duration, error) {
	var leftNS int64
	var hidden bool
	err := postgres.Again(ctx, session, 2, func() error {
		return session.Row(ctx, tokenBucketPaused, []any{key, limiter}, &leftNS, &hidden)
	})
	if err == nil && hidden {
		err = postgres.ErrHidden
	}
	return time.Duration(leftNS), postgres.Explain(err)
}

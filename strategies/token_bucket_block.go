package strategies

import (
	"context"
	_ "embed"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

var (
	//go:embed sql/token_bucket/take_or_block.sql
	tokenBucketTakeOrBlockFile string

	tokenBucketBlocks      = rows.NewTable("token_bucket_blocks")
	tokenBucketTakeOrBlock = postgres.Statement(tokenBucketTakeOrBlockFile, "token_bucket")
)

// takeOrBlock decides a request with a Block. A denial is counted in a row of its own beside the bucket,
// which it locks after that. If the database's clock steps back, a key stays blocked for as long as it
// was when that row was last written; if it steps forward, the block ends sooner.
func takeOrBlock(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (d rate.Decision, err error) {
	var numbers []int64
	var blockedNS int64
	if r.Tokens == 0 {
		err = session.Row(ctx, tokenBucketLook, []any{r.Key, r.Limiter, int64(r.Limit.Token()), calendarOf(r)}, &numbers, &blockedNS)
	} else {
		b := r.Block
		err = session.Row(ctx, tokenBucketTakeOrBlock, []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, how.Patience,
			b.After, int64(b.Within), int64(b.For), int64(b.Max), int64(b.Forget), how.Relaxed, calendarOf(r),
		}, &numbers, &blockedNS)
	}
	if err != nil {
		return rate.Decision{}, err
	}
	d = decisionOf(r, numbers)
	if blockedNS > 0 {
		d.Allowed, d.Blocked, d.BlockedFor = false, true, time.Duration(blockedNS)
		d.RetryAfter = max(d.RetryAfter, d.BlockedFor)
	}
	return d, nil
}

package strategies

import (
	"context"
	_ "embed"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

var (
	//go:embed sql/token_bucket/take_or_block.sql
	tokenBucketTakeOrBlockFile string

	tokenBucketBlocks      = rows.NewTable("token_bucket_blocks", "")
	tokenBucketTakeOrBlock = call.Statement(tokenBucketTakeOrBlockFile, "token_bucket")
)

// takeOrBlock decides in one round trip. It locks the bucket's row for a grant, and a row of the
// key's denials for a denial, in this order; for a denial of a blocked key none. In a transaction of
// the caller's, a denial counts only if that commits; two that each ask more than once for a key can
// deadlock, because a denial holds no lock on the bucket. Take knows nothing of blocks.
//
// A block is counted by the database's clock. If that steps back, a key is blocked for as long as
// it was when its row was last written; if it steps forward, the block ends sooner.
func (TokenBucket) takeOrBlock(ctx context.Context, session rate.Session, r rate.Request) (rate.Decision, error) {
	return call.Alone(ctx, session, &r, func(ctx context.Context, session rate.Session, r *rate.Request, how call.Manner) (rate.Decision, error) {
		return takeOrBlock(ctx, session, r, r.Block, how)
	})
}

func takeOrBlock(ctx context.Context, session rate.Session, r *rate.Request, b *rate.Block, how call.Manner) (rate.Decision, error) {
	var granted, nowNS, blockedNS int64
	var after bucket.Bucket
	var err error
	if r.Tokens == 0 {
		nowNS, blockedNS, after, err = lookAtOne(ctx, session, r)
	} else {
		err = session.Row(ctx, tokenBucketTakeOrBlock, []any{
			r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens,
			b.After, int64(b.Within), int64(b.For), int64(b.Max), int64(b.Forget), how.Relaxed, how.Impatient,
		}, &granted, &nowNS, &blockedNS, &after.FullNS, &after.TokenNS, &after.AtNS, &after.LeasedNS, &after.UntilNS, nil)
	}
	if err != nil {
		return rate.Decision{}, err
	}
	if blockedNS == 0 {
		nowNS = after.Dated(nowNS)
	}
	d := after.Decision(r, nowNS, granted)
	if blockedNS > 0 {
		d.Allowed, d.Blocked, d.BlockedFor = false, true, time.Duration(blockedNS)
		d.RetryAfter = max(d.RetryAfter, d.BlockedFor)
	}
	return d, nil
}

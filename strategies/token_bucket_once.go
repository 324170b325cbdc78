package strategies

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

var (
	//go:embed sql/token_bucket/take_once.sql
	tokenBucketTakeOnceFile string

	tokenBucketAnswers  = rows.NewTable("token_bucket_answers", "")
	tokenBucketTakeOnce = call.Statement(tokenBucketTakeOnceFile, "token_bucket")
)

// takeOnce decides in one round trip. A grant is kept beside the bucket, in the transaction of the
// take: both are there, or neither. A later request with the same ID locks nothing.
//
// If the database's clock steps back, an ID is kept for longer, at most for another ttl from the
// next request with it. If the clock steps forward, it is kept for less.
func (TokenBucket) takeOnce(ctx context.Context, session rate.Session, r rate.Request) (rate.Decision, error) {
	var first kept
	d, err := call.Alone(ctx, session, &r, func(ctx context.Context, session rate.Session, r *rate.Request, how call.Manner) (d rate.Decision, err error) {
		first, d, err = takeOnce(ctx, session, r, r.IDTTL, how)
		return d, err
	})
	if err == nil {
		err = first.check(&r)
	}
	if err != nil {
		return rate.Decision{}, err
	}
	return d, nil
}

// kept is what an ID was granted, now or before: zero after a denial.
type kept struct{ tokens, tokenNS, windowNS int64 }

func takeOnce(ctx context.Context, session rate.Session, r *rate.Request, ttl time.Duration, how call.Manner) (first kept, d rate.Decision, err error) {
	var nowNS int64
	var after bucket.Bucket
	err = session.Row(ctx, tokenBucketTakeOnce,
		[]any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.ID, ttl.Nanoseconds(), how.Relaxed, how.Impatient},
		&first.tokens, &first.windowNS, &nowNS, &after.FullNS, &after.TokenNS, &after.AtNS, &after.LeasedNS, &after.UntilNS, nil)
	if err != nil {
		return kept{}, rate.Decision{}, err
	}
	first.tokenNS = after.TokenNS
	asked := *r
	asked.Limit = first.limit(r)
	d = after.Decision(&asked, after.Dated(nowNS), first.tokens)
	if asked.Limit != r.Limit {
		d.Limit = asked.Limit
	}
	return first, d, nil
}

// limit of the grant: that of r, unless the limit has changed since.
func (k kept) limit(r *rate.Request) rate.Limit {
	if k.tokens == 0 || k.tokenNS == int64(r.Limit.Token()) && k.windowNS == int64(r.Limit.Window()) {
		return r.Limit
	}
	return rate.Every(time.Duration(k.tokenNS)).WithBurst(k.windowNS / k.tokenNS)
}

// check returns an error if the ID was granted tokens for another request than r. The limit may
// have changed between two tries of the same request.
func (k kept) check(r *rate.Request) error {
	if k.tokens == 0 || k.tokens == r.Tokens {
		return nil
	}
	return &rate.RequestError{Field: "ID", Why: fmt.Sprintf(
		"is %q: a request with this ID was granted %d tokens, and this one is for %d (give each request an ID of its own)", r.ID, k.tokens, r.Tokens)}
}

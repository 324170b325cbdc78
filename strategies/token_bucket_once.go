package strategies

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

var (
	//go:embed sql/token_bucket/take_once.sql
	tokenBucketTakeOnceFile string

	tokenBucketAnswers  = rows.NewTable("token_bucket_answers")
	tokenBucketTakeOnce = postgres.Statement(tokenBucketTakeOnceFile, "token_bucket")
)

// takeOnce decides a request with an ID. A grant is kept beside the bucket, in the transaction of the
// take: both are there, or neither. A later request with the same ID locks nothing.
//
// If the database's clock steps back, an ID is kept for longer, at most for another IDTTL from the
// next request with it. If the clock steps forward, it is kept for less.
func takeOnce(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var numbers []int64
	var windowNS int64 // of the grant
	err := session.Row(ctx, tokenBucketTakeOnce, []any{
		r.Key, r.Limiter, r.ID, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.IDTTL.Nanoseconds(), how.Patience, how.Relaxed, calendarOf(r),
	}, &numbers, &windowNS)
	if err != nil {
		return rate.Decision{}, err
	}
	granted, tokenNS := numbers[1], numbers[3]
	if granted > 0 && granted != r.Tokens {
		return rate.Decision{}, &rate.RequestError{Field: "ID", Why: fmt.Sprintf(
			"is %q: a request with this ID was granted %d tokens, and this one is for %d (give each request an ID of its own)", r.ID, granted, r.Tokens)}
	}
	asked := *r
	if bucketOf(numbers[2:]).InCalendar() {
		if r.Limit.Calendar != "" {
			asked.Limit.Tokens, asked.Limit.Burst = max(r.Limit.Tokens, windowNS), windowNS
		}
	} else if granted > 0 && (tokenNS != int64(r.Limit.Token()) || windowNS != int64(r.Limit.Window())) { // the limit has changed since the grant
		asked.Limit = rate.Every(time.Duration(tokenNS)).WithBurst(windowNS / tokenNS)
	}
	d := decisionOf(&asked, numbers)
	if asked.Limit != r.Limit {
		d.Limit = asked.Limit
	}
	return d, nil
}

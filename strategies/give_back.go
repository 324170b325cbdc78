package strategies

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit"
)

//go:embed give_back.sql
var giveBackFile string

// refundArgs are a statement's for one refund. relaxed is as in relaxes.
type refundArgs func(refund pglimit.Refund, relaxed bool) []any

// bucketRefund are those of give_back.sql.
func bucketRefund(r pglimit.Refund, relaxed bool) []any {
	scale := scaleOf(r.Limit)
	return []any{r.Key, r.Limiter, scale.token, scale.refill, scale.burst, r.Tokens, r.At.UnixMicro(), relaxed}
}

// giveBack sends a statement per refund, in lock order, in one round trip. Outside a
// transaction, statements that travel together are one.
func giveBack(ctx context.Context, db pglimit.DB, strategy pglimit.Strategy, refunds []pglimit.Refund, statement string, args refundArgs) error {
	requests := make([]pglimit.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].Request
	}
	if err := validate(strategy, requests); err != nil || len(refunds) == 0 {
		return err
	}
	relaxed := relaxes(db, requests)
	var batch pgx.Batch
	for _, i := range lockOrder(requests) {
		batch.Queue(statement, args(refunds[i], relaxed)...)
	}
	return explain(db.SendBatch(ctx, &batch).Close())
}

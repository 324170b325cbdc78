package strategies

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// refundArgs are a statement's for one refund. relaxed: the commit need not wait for
// the disk.
type refundArgs func(refund rate.Refund, relaxed bool) []any

// bucketRefund are those of give_back.sql.
func bucketRefund(r rate.Refund, relaxed bool) []any {
	return []any{r.Key, r.Limiter, int64(r.Limit.Token()), r.Tokens, r.At.UnixNano(), relaxed}
}

// giveBack sends a statement per refund, in lock order, in one round trip. Outside a
// transaction, statements that travel together are one: where one of several rows is locked
// by somebody else, which would keep all of them waiting, each goes by itself.
func giveBack(ctx context.Context, db rate.DB, strategy rate.Strategy, refunds []rate.Refund, statement string, args refundArgs) error {
	requests := make([]rate.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].Request
	}
	if err := validate(strategy, requests); err != nil || len(refunds) == 0 {
		return err
	}
	how := mannerOf(db, requests)
	var batch pgx.Batch
	if how.impatient {
		batch.Queue("select pg_catalog.set_config('lock_timeout', '20ms', true)")
	}
	for _, i := range lockOrder(requests) {
		batch.Queue(statement, args(refunds[i], how.relaxed)...)
	}
	err := explain(db.SendBatch(ctx, &batch).Close())
	if !errors.Is(err, rate.ErrLocked) || len(refunds) == 1 {
		return err
	}
	var failed []error
	for i := range refunds {
		_, err := db.Exec(ctx, statement, args(refunds[i], how.relaxed)...)
		failed = append(failed, explain(err))
	}
	return errors.Join(failed...)
}

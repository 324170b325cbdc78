package strategies

import (
	"context"
	"errors"

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
func giveBack(ctx context.Context, session rate.Session, strategy rate.Strategy, refunds []rate.Refund, sql string, args refundArgs) error {
	requests := make([]rate.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].Request
	}
	if err := validate(strategy, requests); err != nil || len(refunds) == 0 {
		return err
	}
	how := mannerOf(session, requests)
	var statements []rate.Statement
	if how.impatient {
		statements = append(statements, loseLockPatience)
	}
	for _, i := range lockOrder(requests) {
		statements = append(statements, rate.Statement{SQL: sql, Args: args(refunds[i], how.relaxed)})
	}
	_, err := session.Pipeline(ctx, statements...)
	if err = explain(err); !errors.Is(err, rate.ErrLocked) || len(refunds) == 1 {
		return err
	}
	var failed []error
	for i := range refunds {
		_, err := session.Exec(ctx, sql, args(refunds[i], how.relaxed)...)
		failed = append(failed, explain(err))
	}
	return errors.Join(failed...)
}

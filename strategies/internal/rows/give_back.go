package rows

import (
	"context"
	"errors"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
)

// GiveBack gives tokens back to their buckets.
func (t Table) GiveBack(ctx context.Context, session rate.Session, strategy rate.Strategy, refunds []rate.Refund) error {
	return GiveBack(ctx, session, strategy, refunds, t.giveBack, func(r rate.Refund, relaxed bool) []any {
		return []any{r.Key, r.Limiter, int64(r.Limit.Token()), r.Tokens, r.At.UnixNano(), relaxed}
	})
}

// GiveBack sends a statement per refund, in lock order, in one round trip, which is one
// transaction. If another call holds one of several rows, that transaction fails, and each
// refund is sent by itself. args returns the arguments of the statement; relaxed says that
// the commit need not wait for the disk.
func GiveBack(ctx context.Context, session rate.Session, strategy rate.Strategy, refunds []rate.Refund, sql string, args func(refund rate.Refund, relaxed bool) []any) error {
	requests := make([]rate.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].Request
	}
	if err := call.Validate(strategy, requests); err != nil || len(refunds) == 0 {
		return err
	}
	how := call.MannerOf(session, requests)
	var statements []rate.Statement
	if how.Impatient {
		statements = append(statements, call.LosePatience)
	}
	for _, i := range call.Order(requests) {
		statements = append(statements, rate.Statement{SQL: sql, Args: args(refunds[i], how.Relaxed)})
	}
	_, err := session.Pipeline(ctx, statements...)
	if err = call.Explain(err); !errors.Is(err, rate.ErrLocked) || len(refunds) == 1 {
		return err
	}
	var failed []error
	for i := range refunds {
		_, err := session.Exec(ctx, sql, args(refunds[i], how.Relaxed)...)
		failed = append(failed, call.Explain(err))
	}
	return errors.Join(failed...)
}

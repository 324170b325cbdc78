package rows

import (
	"context"
	"errors"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// GiveBack gives tokens back to their buckets.
func (t *Table) GiveBack(ctx context.Context, session rate.Session, strategy rate.Strategy, refunds []rate.Refund) error {
	return GiveBack(ctx, session, strategy, refunds, t.giveBack, GiveBackArgs)
}

// GiveBackArgs are the arguments of give_back.sql.
func GiveBackArgs(r rate.Refund, relaxed bool) []any {
	return []any{r.Key, r.Limiter, int64(r.Limit.Token()), int64(r.Limit.Window()), r.Tokens, r.At.UnixNano(), int64(r.Delay), relaxed}
}

// GiveBack sends a statement per refund, in lock order, in one round trip, which is one transaction. If row security
// may hide rows, that is the error. If another call holds one of several rows, that transaction fails, and each
// refund is sent by itself, those of held rows last. args returns the arguments of the statement; relaxed says that
// the commit need not wait for the disk.
func GiveBack(ctx context.Context, session rate.Session, strategy rate.Strategy, refunds []rate.Refund, sql string, args func(refund rate.Refund, relaxed bool) []any) error {
	requests := make([]rate.Request, len(refunds))
	for i := range refunds {
		requests[i] = refunds[i].Request
		if err := rate.ValidateCall(strategy, requests[i:i+1]); err != nil { // two of one bucket may be under different limits
			return err
		}
	}
	if len(refunds) == 0 {
		return nil
	}
	how := postgres.MannerOf(session, requests)
	var hidden bool
	// Not a column of the refund: where a pooler mixes up statements, others would read it as theirs.
	look := rate.Statement{SQL: postgres.Statement("select pg_catalog.row_security_active('$table'::pg_catalog.regclass)", strategy.Name()), Into: []any{&hidden}}
	var statements []rate.Statement
	for _, i := range postgres.Order(requests) {
		if refunds[i].Tokens > 0 {
			statements = append(statements, rate.Statement{SQL: sql, Args: args(refunds[i], how.Relaxed)})
		}
	}
	if len(statements) == 0 {
		return nil
	}
	err := postgres.Again(ctx, session, 5, func() error {
		return inOne(ctx, session, len(statements) > 1, how.Statements(append(statements, look)...))
	})
	if err == nil && hidden {
		return postgres.ErrHidden
	}
	if err = postgres.Explain(err); !errors.Is(err, rate.ErrLocked) || how.Patience == nil || len(refunds) == 1 {
		return err
	}
	// Those of rows that are free first: the others may have to wait for as long as ctx lasts.
	var failed []error
	var held []rate.Statement
	for _, statement := range statements {
		err := postgres.Again(ctx, session, 2, func() error {
			_, err := session.Pipeline(ctx, postgres.LosePatience, statement)
			return err
		})
		switch err = postgres.Explain(err); {
		case errors.Is(err, rate.ErrLocked):
			held = append(held, statement)
		case err != nil:
			failed = append(failed, err)
		}
	}
	for _, statement := range held {
		_, err := session.Exec(ctx, statement.SQL, statement.Args...)
		failed = append(failed, postgres.Explain(err))
	}
	return errors.Join(failed...)
}

// inOne sends statements as one transaction, in one round trip. explicit: with statements that begin and end it.
// Without them, Citus commits each one that it sends to another node by itself.
func inOne(ctx context.Context, session rate.Session, explicit bool, statements []rate.Statement) error {
	if !explicit || !session.Autocommits() {
		_, err := session.Pipeline(ctx, statements...)
		return err
	}
	return postgres.Transact(ctx, session, func(b *postgres.Transaction) error { return b.Whole(ctx, statements...) })
}

package rows

import (
	"context"
	"slices"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// resetPages is how many pages one statement walks. A request for one of their keys waits
	// until the statement ends: some milliseconds.
	resetPages = 16

	// resetKeys is how many keys one statement resets.
	resetKeys = 500
)

// noTimeouts is for the transaction alone. One step reads the whole table, and one waits for locked rows:
// ResetAll takes as long as its context lets it, whatever the role's settings are. And a row that it does
// not see is an error.
var noTimeouts = rate.Statement{SQL: `select pg_catalog.set_config(s.name, '0', true), pg_catalog.set_config('row_security', 'off', true) from pg_catalog.unnest(array['statement_timeout', 'lock_timeout', 'transaction_timeout']) s (name)
	where pg_catalog.current_setting(s.name, true) is not null`}

// ResetAll removes every row that the limiter had when ResetAll began. First it walks the
// pages and removes all rows that nobody holds locked. Then it removes by key the rows that are
// left: they were locked, or an update moved them to a page that had been walked. At last it
// removes one by one the rows that are still locked. Only this last step waits.
func (t *Table) ResetAll(ctx context.Context, session rate.Session, limiter string) (removed int64, err error) {
	if err := (rate.Request{Limiter: limiter, Key: "any", Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return 0, err
	}
	if distributed, err := t.isDistributed(ctx, session); err != nil {
		return 0, err
	} else if distributed {
		return t.resetShards(ctx, session, limiter)
	}
	pages, left, several := walk(t.Name, "limiter = $4::text"), postgres.StatementOf(files, "reset_all_left.sql", t.Name), postgres.StatementOf(files, "reset_all_keys.sql", t.Name)
	step := func(sql string, args []any, into ...any) error {
		statements := []rate.Statement{{SQL: sql, Args: args, Into: into}}
		if session.Autocommits() {
			statements = append([]rate.Statement{noTimeouts, postgres.Uncompiled}, statements...)
		}
		return postgres.ExplainStep(postgres.Serialized(ctx, session, func() error {
			_, err := session.Pipeline(ctx, statements...)
			return err
		}))
	}
	var n int64
	for page, done := int64(0), false; !done; page += resetPages {
		if err := step(pages, []any{page, page + resetPages, false, limiter}, &n, &done, nil, nil); err != nil {
			return removed, err
		}
		removed += n
	}
	var keys []string
	if err := step(left, []any{limiter}, &keys); err != nil {
		return removed, err
	}
	var held []string
	for chunk := range slices.Chunk(keys, resetKeys) {
		var rest []string
		if err := step(several, []any{chunk, limiter}, &n, &rest); err != nil {
			return removed, err
		}
		removed += n
		held = append(held, rest...)
	}
	for _, key := range held {
		if err := step(t.reset, []any{key, limiter}, nil, &n); err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

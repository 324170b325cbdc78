package rows

import (
	"context"
	_ "embed"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
)

var (
	//go:embed sql/reset_all.sql
	resetAllFile string
	//go:embed sql/reset_all_left.sql
	resetAllLeftFile string
	//go:embed sql/reset_all_keys.sql
	resetAllKeysFile string
)

const (
	// resetPages is how many pages one statement walks. A request for one of their keys waits
	// until the statement ends: some milliseconds.
	resetPages = 16

	// resetKeys is how many keys one statement resets.
	resetKeys = 500
)

// ResetAll removes every row that the limiter had when ResetAll began. First it walks the
// pages and removes all rows that nobody holds locked. Then it removes by key the rows that are
// left: they were locked, or an update moved them to a page that had been walked. At last it
// removes one by one the rows that are still locked. Only this last step waits.
func (t Table) ResetAll(ctx context.Context, session rate.Session, limiter string) (removed int64, err error) {
	if err := (rate.Request{Limiter: limiter, Key: "any", Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return 0, err
	}
	walk, left := call.Statement(resetAllFile, t.name), call.Statement(resetAllLeftFile, t.name)
	for page, done := int64(0), false; !done; page += resetPages {
		var n int64
		if err := session.Row(ctx, walk, []any{page, page + resetPages, limiter}, &n, &done); err != nil {
			return removed, call.Explain(err)
		}
		removed += n
	}
	var keys []string
	if err := session.Row(ctx, left, []any{limiter}, &keys); err != nil {
		return removed, call.Explain(err)
	}
	n, err := t.resetLeft(ctx, session, limiter, keys)
	return removed + n, call.Explain(err)
}

// resetLeft removes the rows of the keys; locked ones last.
func (t Table) resetLeft(ctx context.Context, session rate.Session, limiter string, keys []string) (removed int64, err error) {
	several, one := call.Statement(resetAllKeysFile, t.name), t.reset
	var held []string
	for chunk := range slices.Chunk(keys, resetKeys) {
		var n int64
		var rest []string
		if err := session.Row(ctx, several, []any{chunk, limiter}, &n, &rest); err != nil {
			return removed, err
		}
		removed += n
		held = append(held, rest...)
	}
	for _, key := range held {
		n, err := session.Exec(ctx, one, key, limiter)
		if err != nil {
			return removed, err
		}
		removed += n
	}
	return removed, nil
}

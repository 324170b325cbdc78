package strategies

import (
	"context"
	_ "embed"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	//go:embed sql/any/reset_all.sql
	resetAllFile string
	//go:embed sql/any/reset_all_left.sql
	resetAllLeftFile string
	//go:embed sql/any/reset_all_keys.sql
	resetAllKeysFile string
)

var (
	_ rate.AllResetter = TokenBucket{}
	_ rate.AllResetter = Upsert{}
	_ rate.AllResetter = ForUpdateNowait{}
	_ rate.AllResetter = ExclusionRange{}
)

// ResetAll deletes the rows of the limiter.
func (s TokenBucket) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return resetAll(ctx, session, s, limiter)
}

// ResetAll deletes the rows of the limiter.
func (s Upsert) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return resetAll(ctx, session, s, limiter)
}

// ResetAll deletes the rows of the limiter.
func (s ForUpdateNowait) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	return resetAll(ctx, session, s, limiter)
}

// ResetAll deletes the rows of the limiter: one for each grant, those that have ended
// included.
func (s ExclusionRange) ResetAll(ctx context.Context, session rate.Session, limiter string) (int64, error) {
	removed, err := resetAll(ctx, session, s, limiter)
	return removed, explainRange(err)
}

const (
	// resetPages are walked by one statement. A key that is asked for meanwhile waits for
	// its end: some milliseconds.
	resetPages = 16

	// resetKeys are reset by one statement.
	resetKeys = 500
)

// resetAll removes every row that the limiter had when it began: first page by page, as
// many as nobody holds; then, by key, what is left, because somebody held it or moved it
// to a page that had been walked; and at last what somebody still holds, one by one, and
// waits for it. Only that waits.
func resetAll(ctx context.Context, session rate.Session, s rate.Strategy, limiter string) (removed int64, err error) {
	if err := (rate.Request{Limiter: limiter, Key: "any", Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return 0, err
	}
	walk, left := statement(resetAllFile, s.Name()), statement(resetAllLeftFile, s.Name())
	for page, done := int64(0), false; !done; page += resetPages {
		var n int64
		if err := session.Row(ctx, walk, []any{page, page + resetPages, limiter}, &n, &done); err != nil {
			return removed, explain(err)
		}
		removed += n
	}
	var keys []string
	if err := session.Row(ctx, left, []any{limiter}, &keys); err != nil {
		return removed, explain(err)
	}
	n, err := resetLeft(ctx, session, s.Name(), limiter, keys)
	return removed + n, explain(err)
}

// resetLeft removes the rows of the keys.
func resetLeft(ctx context.Context, session rate.Session, table, limiter string, keys []string) (removed int64, err error) {
	several, one := statement(resetAllKeysFile, table), statement(resetFile, table)
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

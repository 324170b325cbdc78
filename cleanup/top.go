package cleanup

import (
	"context"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// topKeys sweeps the rows that the view pglimit.top does not count any more: also those of processes that left.
type topKeys struct{ rate.Sweeper } // of which the cleanup calls nothing else

func (topKeys) Name() string { return "top" }

// Sweep removes so many rows of the whole table: it is small, so nobody walks it.
func (topKeys) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	removed, err := session.Exec(ctx, `
		delete from pglimit.top_keys where ctid = any (array(
			select ctid from pglimit.top_keys where at_ns <= (select pglimit.clock_ns()) - 3600000000000::bigint
			limit $1::bigint for update skip locked))`, int64(limit))
	return rate.Swept{Removed: removed, Next: from + 1, Done: removed < int64(limit)}, postgres.Explain(err)
}

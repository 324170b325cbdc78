package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// fillPages adds rows of buckets that have long been full, until the last of so many pages has
// one.
func fillPages(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, pages int64) {
	t.Helper()
	table, row := "pglimit."+strategy.Name(), "(key, limiter, full_ns, token_ns, at_ns) values ('k' || i, 'test', 1000, 1000, 1)"
	switch {
	case strategy.Name() == "warm_up":
		row = "values ('k' || i, 'test', 1000, 999, 1, 1, 999, 1)"
	case strategy.Rule() != (strategies.TokenBucket{}).Rule():
		row = "values ('k' || i, 'test', '{1}', '{1}', '{999}', 1000, 1)"
	case strategy.Name() == "exclusion_range":
		row = "values ('k' || i, 'test', '[2000-01-01,2000-01-02)')"
	}
	execute(t, pool, "alter table "+table+" set (autovacuum_enabled = off)") // it could cut pages off
	execute(t, pool, fmt.Sprintf(`do $$ declare i int := 0; begin
		while pg_relation_size('%[1]s') < %[2]d * current_setting('block_size')::bigint loop
			i := i + 1;
			insert into %[1]s %[3]s;
		end loop;
	end $$`, table, pages, row))
	if made := query[int64](t, pool, "select pg_relation_size($1::regclass) / current_setting('block_size')::bigint", table); made != pages {
		t.Fatalf("%d pages, want %d", made, pages)
	}
}

// A sweep by batches of two pages ends with the batch that has the last page, be that full or
// not: none is left out, and none asked for in vain.
func TestSweepEndsWithTheLastPage(t *testing.T) {
	t.Parallel()
	const limit = 2 * 40 // as many rows as are said to lie in two pages
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		for pages, batches := range map[int64]int{2: 1, 6: 3, 7: 4} {
			execute(t, pool, "truncate pglimit."+strategy.Name())
			fillPages(t, pool, strategy, pages)
			take(t, pool, strategy, "in use", pglimit.Every(time.Hour)) // in the last page: it has room
			rows := rowsIn(t, pool, strategy)

			var removed int64
			var from pglimit.Cursor
			for batch := 1; ; batch++ {
				swept, err := strategy.Sweep(t.Context(), on(pool), from, limit)
				if err != nil {
					t.Fatal(err)
				}
				if swept.Done != (batch == batches) || swept.Next != from+2 || swept.Removed == 0 {
					t.Errorf("%d pages, batch %d: %+v", pages, batch, swept)
				}
				removed, from = removed+swept.Removed, swept.Next
				if swept.Done || batch > 10 {
					break
				}
			}
			if left := rowsIn(t, pool, strategy); removed != rows-1 || left != 1 {
				t.Errorf("%d pages: %d of %d rows removed, %d left", pages, removed, rows, left)
			}
		}
	})
}

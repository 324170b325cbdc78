package integration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Buckets that are full are taken from while their rows are being removed: each
// grants its burst and not one more or less.
func TestCleanupAndTakesOfTheSameRows(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			limit := inParts(strategy, pglimit.Every(time.Hour).WithBurst(3))
			const keys, callers = 40, 4
			request := func(key int) rate.Request {
				return rate.Request{Limiter: "same rows", Key: fmt.Sprint("key ", key), Limit: limit, Tokens: 1, Unit: 1}
			}
			var removed int64
			for round := 0; round < 3 || removed == 0 && round < 100; round++ { // on a busy machine the takes may be faster
				granted := make([]atomic.Int64, keys)
				var taking sync.WaitGroup
				for range callers {
					taking.Go(func() {
						for key := range keys {
							for range limit.Burst {
								for {
									d := takeAll(t, pool, strategy, request(key))[0]
									granted[key].Add(d.Granted)
									if !d.Contended {
										break
									}
								}
							}
						}
					})
				}
				taken := make(chan struct{})
				go func() { taking.Wait(); close(taken) }()
				for swept := false; !swept; {
					select {
					case <-taken:
						swept = true
					default:
						removed += cleanupSweep(t, pool, strategy, 40)
					}
				}
				for key := range granted {
					if n := granted[key].Load(); n != limit.Burst {
						t.Errorf("round %d: key %d got %d tokens, want %d", round, key, n, limit.Burst)
					}
				}
				age(t, pool, strategy, 10*time.Hour) // full, for long
			}
			if removed == 0 {
				t.Error("nothing was removed: this says nothing")
			}
		})
	}
}

// cleanupSweep walks the whole table once.
func cleanupSweep(t *testing.T, db database, strategy strategies.Strategy, limit int) (removed int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var swept pglimit.Swept
	for !swept.Done {
		var err error
		if swept, err = strategy.Sweep(ctx, on(db), swept.Next, limit); err != nil {
			t.Fatalf("%s: sweep: %v", strategy.Name(), err)
		}
		removed += swept.Removed
	}
	return removed
}

// age lets so much time pass for all that a strategy remembers.
func age(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, by time.Duration) {
	t.Helper()
	if strategy.Name() == "exclusion_range" {
		// Not by an update, in which a range would meet the one before it, not yet moved: the sort has all of them
		// deleted first.
		execute(t, pool, `
			with old as (delete from pglimit.exclusion_range returning *)
			insert into pglimit.exclusion_range (key, limiter, during)
			select key, limiter, tstzrange(lower(during) - $1::bigint * interval '1 microsecond', upper(during) - $1 * interval '1 microsecond') from old order by during`, by.Microseconds())
		return
	}
	times := "full_ns = full_ns - $1, at_ns = at_ns - $1"
	if strategy.Name() == "token_bucket" {
		times += ", until_ns = until_ns - $1"
	}
	switch {
	case strategy.Name() == "warm_up":
		times += ", free_ns = free_ns - $1, due_ns = due_ns - $1"
	case strategy.Rule() != (strategies.TokenBucket{}).Rule():
		times += ", last_ns = (select array_agg(n - $1 order by i) from unnest(last_ns) with ordinality u (n, i))"
	}
	execute(t, pool, "update pglimit."+strategy.Name()+" set "+times, by.Nanoseconds())
}

func sweepOnce(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) int64 {
	t.Helper()
	swept, err := strategy.Sweep(t.Context(), on(pool), 0, 1_000_000)
	must(t, err)
	if !swept.Done {
		t.Errorf("the table does not end: %+v", swept)
	}
	return swept.Removed
}

// A sweep passes over rows that are locked and waits for nobody.
func TestSweepWaitsForNobody(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		for _, key := range []string{"held", "free"} {
			take(t, pool, strategy, key, pglimit.Every(time.Second))
		}
		age(t, pool, strategy, time.Hour)
		holder := begin(t, pool)
		execute(t, holder, "select from pglimit."+strategy.Name()+" where key = 'held' for update")
		sweeper := begin(t, pool)
		execute(t, sweeper, "set local lock_timeout = 1")
		swept, err := strategy.Sweep(t.Context(), on(sweeper), 0, 1_000_000)
		if err != nil || swept.Removed != 1 {
			t.Errorf("%+v, %v: want the free row removed", swept, err)
		}
	})
}

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
				must(t, err)
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

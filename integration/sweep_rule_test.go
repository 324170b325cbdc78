package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// age lets so much time pass for all that a strategy remembers.
func age(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, by time.Duration) {
	t.Helper()
	if strategy.Name() == "exclusion_range" {
		// Not by an update, in which a range would meet the one before it, not yet moved: the sort has all of them deleted first.
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
	if err != nil {
		t.Fatal(err)
	}
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

package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Trap C: an insert that violates the exclusion constraint has written before it
// looks, so that two of them wait for one another. The statement as published
// deadlocks under the load under which exclusion_range does not.
//
// Not parallel: the load is what matters.
func TestTrapCThePublishedExclusionDeadlocks(t *testing.T) {
	limit := pglimit.Every(200 * time.Millisecond)
	// crowd lets 64 callers take one key until a deadlock or the end of ctx.
	crowd := func(ctx context.Context, t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) (deadlocked bool, grants int64) {
		t.Helper()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		pools := twoPools(t, pool, 64)
		var mu sync.Mutex
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				for ctx.Err() == nil {
					decisions, err := strategy.Take(ctx, on(pools[i%2]), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1}})
					mu.Lock()
					switch {
					case err == nil:
						grants += decisions[0].Granted
					case sqlState(err) == "40P01":
						deadlocked = true
						stop()
					case ctx.Err() == nil:
						t.Error(err)
						stop()
					}
					mu.Unlock()
				}
			})
		}
		callers.Wait()
		return deadlocked, grants
	}

	t.Run("published", func(t *testing.T) {
		pool := newMigrated(t)
		if err := published.Create(t.Context(), on(pool), "published"); err != nil {
			t.Fatal(err)
		}
		if deadlocked, _ := crowd(soon(t, time.Minute), t, pool, published.NewExclusion("published")); !deadlocked {
			t.Error("no deadlock in a minute: this load would not show one")
		}
	})
	t.Run("exclusion_range", func(t *testing.T) {
		pool := newMigrated(t)
		before := query[int64](t, pool, deadlocks)
		deadlocked, grants := crowd(soon(t, 1500*time.Millisecond), t, pool, strategies.ExclusionRange{})
		if after := query[int64](t, pool, deadlocks); deadlocked || after != before {
			t.Errorf("%d deadlocks", after-before)
		}
		if grants < 3 || grants > 8 {
			t.Errorf("%d grants in 1.5 s at one per 200 ms", grants)
		}
	})
}

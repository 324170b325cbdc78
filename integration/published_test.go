package integration

import (
	"context"
	"math"
	"slices"
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
	// crowd lets 64 connected callers take one key until a deadlock, so many grants, or for a minute.
	crowd := func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy, enough int) (deadlocked bool, grants []time.Time) {
		t.Helper()
		pools := twoPools(t, pool, 64)
		for _, pool := range pools {
			warmUp(t, pool, 32)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var mu sync.Mutex
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				for ctx.Err() == nil {
					decisions, err := strategy.Take(ctx, on(pools[i%2]), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1}})
					mu.Lock()
					switch {
					case err == nil:
						if decisions[0].Allowed {
							grants = append(grants, decisions[0].At)
						}
						if len(grants) >= enough {
							stop()
						}
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
		if deadlocked, _ := crowd(t, pool, published.NewExclusion("published"), math.MaxInt); !deadlocked {
			t.Error("no deadlock in a minute: this load would not show one")
		}
	})
	t.Run("exclusion_range", func(t *testing.T) {
		const enough = 8 // of a second and a half
		pool := newMigrated(t)
		before := query[int64](t, pool, deadlocks)
		deadlocked, grants := crowd(t, pool, strategies.ExclusionRange{}, enough)
		if after := query[int64](t, pool, deadlocks); deadlocked || after != before {
			t.Errorf("%d deadlocks", after-before)
		}
		slices.SortFunc(grants, time.Time.Compare)
		if len(grants) < enough || grants[enough-1].Sub(grants[0]) < (enough-1)*limit.Period {
			t.Errorf("%d grants at one per 200 ms: %v", len(grants), grants)
		}
	})
}

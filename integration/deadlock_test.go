package integration

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// finalDeadlocks is how many deadlocks there were in the pool's database. It closes the
// other pools: a session may keep what it counted to itself until it ends.
func finalDeadlocks(t *testing.T, pool *pgxpool.Pool, others ...*pgxpool.Pool) int64 {
	t.Helper()
	for _, other := range others {
		other.Close()
	}
	pool.Reset()
	eventually(t, pool, `select not exists (select from pg_stat_activity
		where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend')`)
	return query[int64](t, pool, deadlocks)
}

// Where deadlock_timeout is small, Postgres looks for deadlocks before lock_timeout ends a short one,
// and may end the call of anybody in it. That call is made once more: nobody fails.
//
// Not parallel: what contends here is the callers, not other tests.
func TestGroupsBesideResetsWithASmallDeadlockTimeout(t *testing.T) {
	admin := newMigrated(t)
	execute(t, admin, "do $$ begin execute format('alter database %I set deadlock_timeout = 1', current_database()); end $$")
	const keys = 40
	var limiters []*pglimit.Limiter
	for range 3 {
		limiters = append(limiters, newLimiter(t, newPool(t, databaseURL(admin), 16), strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1_000_000)}))
	}
	ctx := soon(t, 1500*time.Millisecond)
	var work sync.WaitGroup
	for caller := range 48 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(caller), 59))
			limiter := limiters[caller%3]
			for ctx.Err() == nil {
				var err error
				key := strconv.Itoa(random.IntN(keys))
				switch {
				case caller < 3 || caller >= 12 && random.IntN(4) == 0:
					err = limiter.Reset(t.Context(), key)
				case caller < 12:
					_, err = limiter.Allow(t.Context(), key)
				default:
					var group []pglimit.Request
					for _, k := range random.Perm(keys)[:8] {
						group = append(group, pglimit.Request{Key: strconv.Itoa(k), Tokens: 1})
					}
					_, err = limiter.DoAll(t.Context(), group...)
				}
				if err != nil {
					t.Error(caller, err)
				}
			}
		})
	}
	work.Wait()
	t.Logf("Postgres ended %d deadlocks", query[int64](t, admin, deadlocks))
}

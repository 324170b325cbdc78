package integration

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// 64 callers take and give back at random, at a limit so slow that nothing flows back:
// what was granted and not given back is what the bucket owes in the end.
func TestGrantsLessRefundsAreWhatTheBucketOwes(t *testing.T) {
	t.Parallel()
	const callers, rounds = 32, 12
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := inParts(strategy, pglimit.Every(3000*time.Hour).WithBurst(500))
		keys := []string{"a", "b", "c"}
		var used [3]atomic.Int64
		var work sync.WaitGroup
		for caller := range callers {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(caller), 11))
				var refunds []pglimit.Refund
				for range rounds {
					which := random.IntN(len(keys))
					want := 1 + random.Int64N(5)
					want = min(want, limit.Burst)
					r := pglimit.Request{Limiter: "test", Key: keys[which], Limit: limit, Tokens: want, Unit: 1}
					d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{r})
					if err != nil {
						t.Error(err)
						return
					}
					back := random.Int64N(d[0].Granted + 1)
					used[which].Add(d[0].Granted - back)
					if back == 0 {
						continue
					}
					r.Tokens, r.Unit = back, back
					refunds = append(refunds, pglimit.Refund{Request: r, At: d[0].At})
					if len(refunds) > random.IntN(4) {
						if err := strategy.GiveBack(t.Context(), on(pool), refunds); err != nil {
							t.Error(err)
							return
						}
						refunds = nil
					}
				}
				if err := strategy.GiveBack(t.Context(), on(pool), refunds); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		for i, key := range keys {
			d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: key, Limit: limit, Unit: 1}})
			if err != nil {
				t.Fatal(err)
			}
			// Each refund is short of what flowed back meanwhile, a part of a token in all.
			if got := limit.Burst - d[0].Remaining; got != used[i].Load() && got != used[i].Load()+1 {
				t.Errorf("%s: %d tokens are used as the bucket sees it, %d were granted and not given back", key, got, used[i].Load())
			}
		}
		noDeadlocks(t, pool)
	})
}

// noDeadlocks checks what Postgres has counted. It ends the pool's sessions, which hand in
// their counts then.
func noDeadlocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pool.Reset()
	watcher := newPool(t, databaseURL(pool), 1)
	if n := query[int64](t, watcher, "select deadlocks from pg_stat_database where datname = current_database()"); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}

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
	const callers, rounds = 32, 25
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

// Of what was out while it could flow back, only the rest is given back, to the part of
// a token.
func TestARefundIsShortOfWhatFlowedBack(t *testing.T) {
	t.Parallel()
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Minute).WithBurst(10)
		if strategy.Check(&pglimit.Request{Limit: limit}) != nil {
			t.Skip("a range of time is given back whole")
		}
		request := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 10, Unit: 10}
		d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{request})
		if err != nil {
			t.Fatal(err)
		}
		// As if four minutes had passed: four tokens flowed back.
		age(t, pool, strategy, 4*time.Minute)
		request.Tokens, request.Unit = 9, 9
		if err := strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: request, At: d[0].At.Add(-4 * time.Minute)}}); err != nil {
			t.Fatal(err)
		}
		// 6 are owed; of 9 given back, 4 have flowed back already.
		d, err = strategy.Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Unit: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if d[0].Remaining != 9 {
			t.Errorf("%d remain, want 9", d[0].Remaining)
		}
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

// An instance whose burst is larger gives back what has flowed back already: the bucket
// does not owe more for it.
func TestARefundOfALargerBurstTakesNothing(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		now := pglimit.PerSecond(1).WithBurst(10)
		if strategy.Check(&pglimit.Request{Limit: now}) != nil {
			t.Skip("it has no burst")
		}
		former := now.WithBurst(100)
		r := pglimit.Request{Limiter: "test", Key: "k", Limit: former, Tokens: 100, Unit: 1}
		d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{r})
		if err != nil || d[0].Granted != 100 {
			t.Fatal(d, err)
		}
		// As if it were 10 seconds ago.
		age(t, pool, strategy, 10*time.Second)
		full := "select full_ns from pglimit." + strategy.Name()
		before := query[int64](t, pool, full)
		r.Tokens = 1
		if err := strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: r, At: d[0].At.Add(-9 * time.Second)}}); err != nil {
			t.Fatal(err)
		}
		if after := query[int64](t, pool, full); after > before {
			t.Errorf("it is full %v later", time.Duration(after-before))
		}
	})
}

// A bucket that has been taken from under another limit since, of nearly the same rate, gets nothing back.
func TestARefundUnderAnotherLimitGivesNothing(t *testing.T) {
	t.Parallel()
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		before := pglimit.Every(time.Hour).WithBurst(10)
		if strategy.Check(&pglimit.Request{Limit: before}) != nil {
			t.Skip("a range of time is given back whole")
		}
		since := pglimit.Every(time.Hour + time.Second).WithBurst(10)
		ask := func(limit pglimit.Limit, tokens int64) pglimit.Decision {
			t.Helper()
			d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Unit: max(1, tokens)}})
			must(t, err)
			return d[0]
		}
		d := ask(before, 5)
		ask(since, 1)
		refund := pglimit.Refund{Request: pglimit.Request{Limiter: "test", Key: "k", Limit: before, Tokens: 5, Unit: 5}, At: d.At}
		must(t, strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{refund}))
		if left := ask(since, 0).Remaining; left != 4 {
			t.Errorf("%d remain, want 4", left)
		}
	})
}

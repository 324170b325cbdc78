package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A session holds the row of one key. Callers of 199 other keys, in two processes that ask for the held key and in one
// that never does, go on being answered without a failure, whatever the timeouts of the role; callers of the held key
// get their answer when the session ends, or the error of a timeout before. The session ends only when all others have
// had many answers, so whoever waits for it waits until the test gives up. How long they wait is pglimit's own test of
// this name.
func TestAHeldKeyStallsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		strategy strategies.Strategy
		settings map[string]string
		fails    bool // the caller of the held key
	}{
		{"token_bucket", strategies.TokenBucket{}, nil, false},
		{"token_bucket, statement_timeout", strategies.TokenBucket{}, map[string]string{"statement_timeout": "4s"}, true},
		{"token_bucket, deadlock_timeout of 1ms", strategies.TokenBucket{}, map[string]string{"deadlock_timeout": "1ms"}, false},
		{"upsert, lock_timeout", strategies.Upsert{}, map[string]string{"lock_timeout": "4s"}, true},
		{"upsert, deadlock_timeout of 1ms", strategies.Upsert{}, map[string]string{"deadlock_timeout": "1ms"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			admin := newMigrated(t)
			url := databaseURL(admin)
			for name, value := range test.settings {
				url = with(url, name, value)
			}
			h := heldKey{t: t, fails: test.fails}
			config := pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1000).WithBurst(1000)}
			config.Timeout = pglimit.NoTimeout // whoever is stalled stays so
			var pools []*pgxpool.Pool
			for range 3 {
				pool := newPool(t, url, 8)
				pools, h.limiters = append(pools, pool), append(h.limiters, newLimiter(t, pool, test.strategy, config))
			}
			take(t, admin, test.strategy, "key:0", config.Limit)
			before := query[int64](t, admin, deadlocks)
			holder := begin(t, admin)
			execute(t, holder, "select from pglimit."+test.strategy.Name()+" where key = 'key:0' for update")
			h.ask(func() { must(t, holder.Rollback(t.Context())) })
			for _, l := range h.limiters {
				must(t, l.Close(t.Context()))
			}
			if after := finalDeadlocks(t, admin, pools...); after != before {
				t.Errorf("%d deadlocks", after-before)
			}
		})
	}
}

// heldKey asks through three limiters while key:0 is held. The last of them never asks for that.
type heldKey struct {
	t        *testing.T
	limiters []*pglimit.Limiter
	fails    bool        // a caller of the held key
	released atomic.Bool // the key
}

// ask until every caller of other keys has had many answers, and every caller of the held key has failed, if it is to.
// Then release the key.
func (h *heldKey) ask(release func()) {
	h.t.Helper()
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(h.t.Context())
	defer stop()
	var answered [18]atomic.Int64
	for i := range answered {
		callers.Go(func() { h.askOthers(ctx, h.limiters[i%3], rand.New(rand.NewPCG(uint64(i), 23)), &answered[i]) })
	}
	eachHas(h.t, answered[:], 10) // so that the held key is asked for in calls with others
	var failing atomic.Int64      // callers of the held key
	for i := range 4 {
		if h.fails {
			failing.Add(1)
		}
		callers.Go(func() {
			h.askHeld(h.limiters[i%2])
			failing.Add(-1)
		})
	}
	eachHas(h.t, answered[:], 50)
	until(h.t, "the callers of the held key fail", func() bool { return failing.Load() <= 0 })
	stop()
	h.released.Store(true)
	release()
	callers.Wait()
}

// eachHas waits until each caller has so many answers.
func eachHas(t *testing.T, answered []atomic.Int64, n int64) {
	t.Helper()
	until(t, "each caller of other keys is answered", func() bool {
		for i := range answered {
			if answered[i].Load() < n && !t.Failed() {
				return false
			}
		}
		return true
	})
}

// askHeld asks for the held key.
func (h *heldKey) askHeld(limiter *pglimit.Limiter) {
	d, err := limiter.Allow(h.t.Context(), "key:0")
	early := !h.released.Load()
	if early != h.fails || (err != nil) != h.fails || d.Allowed == h.fails {
		h.t.Errorf("a caller of the held key: %+v, %v; while it is held: %v", d, err, early)
	}
}

// askOthers asks for other keys, one after another.
func (h *heldKey) askOthers(ctx context.Context, limiter *pglimit.Limiter, random *rand.Rand, answered *atomic.Int64) {
	for ctx.Err() == nil {
		key := "key:" + strconv.Itoa(1+random.IntN(199))
		if _, err := limiter.Allow(context.WithoutCancel(ctx), key); err != nil {
			h.t.Errorf("%s failed: %v", key, err)
			return
		}
		answered.Add(1)
		if random.IntN(200) == 0 { // so that rows are made again and again
			if err := limiter.Reset(context.WithoutCancel(ctx), key); err != nil {
				h.t.Errorf("reset of %s: %v", key, err)
			}
		}
	}
}

// A transaction with repeatable reads sees a row that was removed meanwhile beside the one that it has made itself. It
// decides by its own. (Strategies that lock before they insert fail with 40001.)
func TestASnapshotThatSeesARemovedRow(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, strategy := range []strategies.Strategy{strategies.Upsert{}, strategies.SlidingWindow{}, strategies.SlidingLog{}} {
		limit := pglimit.Per(10, time.Hour)
		request := func(n int64) rate.Request {
			return rate.Request{Limiter: "test", Key: strategy.Name(), Limit: limit, Tokens: n, Unit: n}
		}
		takeAll(t, pool, strategy, request(8))
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		must(t, err)
		if query[int64](t, tx, "select 1") != 1 {
			t.Fatal("a snapshot is taken")
		}
		must(t, strategy.(pglimit.Resetter).Reset(t.Context(), on(pool), "test", strategy.Name())) //nolint:forcetypeassert // all can
		for _, want := range []struct{ n, left int64 }{{2, 8}, {2, 6}, {6, 0}} {
			decisions, err := strategy.Take(t.Context(), on(tx), []rate.Request{request(want.n)})
			must(t, err)
			if d := decisions[0]; !d.Allowed || d.Remaining != want.left {
				t.Errorf("%s: %+v, want %d left", strategy.Name(), d, want.left)
			}
		}
		must(t, tx.Commit(t.Context()))
		if d := takeAll(t, pool, strategy, request(1))[0]; d.Allowed {
			t.Errorf("%s: eleven of ten: %+v", strategy.Name(), d)
		}
	}
}

// for_update_nowait never queues: while somebody holds the row, it answers that the key is
// contended, also those who would wait as long as it takes.
func TestForUpdateNowaitNeverQueues(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(100)
	for name, db := range map[string]func(*testing.T, *pgxpool.Pool) database{
		"on its own":                  func(_ *testing.T, pool *pgxpool.Pool) database { return pool },
		"in the caller's transaction": func(t *testing.T, pool *pgxpool.Pool) database { return begin(t, pool) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.ForUpdateNowait{}
			for _, key := range []string{"free", "held"} {
				take(t, pool, s, key, limit)
			}
			holder := begin(t, pool)
			execute(t, holder, "select from pglimit.for_update_nowait where key = 'held' for no key update")
			mine := db(t, pool)
			type answer struct {
				decisions []pglimit.Decision
				err       error
			}
			answers := make(chan answer, 1)
			whileBlocked(t, pool, func() { // with no deadline
				decisions, err := s.Take(t.Context(), on(mine), asks(limit, "held"))
				answers <- answer{decisions, err}
			}, func() {
				select {
				case a := <-answers:
					if d := a.decisions; a.err != nil || !d[0].Contended || d[0].Allowed {
						t.Errorf("%+v, %v: want contended", d, a.err)
					}
				case <-time.After(time.Minute): // it waits for the holder
					t.Error("it queued")
				}
				commit(t, holder)
			})
			// The rest is not disturbed by it, nor the transaction that it was in.
			for _, key := range []string{"free", "held"} {
				if !take(t, mine, s, key, limit).Allowed {
					t.Errorf("%s is denied though nobody holds it", key)
				}
			}
		})
	}
}

// An impatient take gives up soon if somebody holds the row, also if the clock has stepped back and
// the row must be corrected first.
func TestAnImpatientTakeDoesNotWaitToCorrectARow(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour)
		take(t, pool, strategy, "k", limit)
		age(t, pool, strategy, -time.Minute) // as if the take had been by a clock a minute ahead
		execute(t, begin(t, pool), "select from pglimit."+strategy.Name()+" for update")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		decisions, err := strategy.Take(ctx, on(pool), []rate.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1, Impatient: true}})
		if err == nil && decisions[0].Contended { // as for_update_nowait says it
			return
		}
		if !errors.Is(err, pglimit.ErrLocked) || !errors.Is(err, pglimit.ErrNothingTaken) {
			t.Errorf("%+v, %v: want ErrLocked", decisions, err)
		}
	})
}

// A table that is locked is no row that is: no strategy makes a denial of it.
func TestALockedTableIsAnError(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour)
		execute(t, begin(t, pool), "lock table pglimit."+strategy.Name()+" in share row exclusive mode")
		soon := newPool(t, with(databaseURL(pool), "lock_timeout", "50ms"), 2)
		for name, on := range map[string]database{"alone": soon, "in a transaction": begin(t, soon)} {
			if d, err := tryTake(t, on, strategy, "k", limit); !errors.Is(err, pglimit.ErrLocked) {
				t.Errorf("%s: %+v, %v: want ErrLocked", name, d, err)
			}
		}
	})
}

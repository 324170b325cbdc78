package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
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
				url = withParameter(url, name, value)
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

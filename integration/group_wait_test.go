package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// 64 callers of two processes wait for groups of the same buckets, and a third of them gives up; others ask for one of
// the buckets alone. Each bucket is exact, and so are the times of use where all ask for the same group. No group is
// taken in part, and nobody fails or deadlocks. What is given back is there again: a bucket in which nothing comes back
// owes as much as was used.
//
// Not parallel: what contends here is the callers, not other tests.
func TestGroupsThatWaitAreExact(t *testing.T) {
	for name, test := range map[string]struct {
		alone  bool // callers who ask for a bucket alone
		second pglimit.Limit
		change func(*pglimit.Config)
	}{
		"same groups":          {second: pglimit.PerSecond(300).WithBurst(40)},
		"nothing comes back":   {second: pglimit.Every(time.Hour).WithBurst(3000)},
		"with a calendar":      {second: pglimit.Per(150, time.Second).Fixed()},
		"beside others":        {second: pglimit.PerSecond(300).WithBurst(40), alone: true},
		"without combining":    {second: pglimit.PerSecond(300).WithBurst(40), alone: true, change: func(c *pglimit.Config) { c.Combine.Off = true }},
		"leases, and new keys": {second: pglimit.PerSecond(300).WithBurst(40), change: func(c *pglimit.Config) { c.Leases.On, c.NewKeys.Limit = true, pglimit.PerSecond(1000) }},
	} {
		t.Run(name, func(t *testing.T) {
			admin := newMigrated(t)
			config := pglimit.Config{Name: "test", Limit: pglimit.PerSecond(200).WithBurst(5)}
			if test.change != nil {
				test.change(&config)
			}
			pools := []*pgxpool.Pool{newPool(t, databaseURL(admin), 8), newPool(t, databaseURL(admin), 8)}
			var limiters []*pglimit.Limiter
			for _, pool := range pools {
				limiters = append(limiters, newLimiter(t, pool, strategies.TokenBucket{}, config))
			}
			var mu sync.Mutex
			var log, used audit.Log
			add := func(to *audit.Log, r audit.Record) {
				mu.Lock()
				defer mu.Unlock()
				must(t, to.Add(r))
			}
			var granted, gaveUp, tooLong atomic.Int64
			least, most := soon(t, time.Second), soon(t, time.Minute)
			var work sync.WaitGroup
			for i := range 64 {
				work.Go(func() {
					random, limiter := rand.New(rand.NewPCG(uint64(i), 39)), limiters[i%2]
					for least.Err() == nil || (granted.Load() < 100 || gaveUp.Load() < 20) && most.Err() == nil {
						r := audit.Record{Limiter: "test", Key: "k", Limit: audit.Limit{Limit: config.Limit}, Tokens: 1, At: audit.Time(time.Now().UnixNano())}
						if test.alone && i%8 == 0 {
							d, err := limiter.Allow(t.Context(), "k")
							add(&log, r.Answered(d, err))
							must(t, err)
							continue
						}
						ctx, cancel := context.WithCancel(t.Context())
						if random.IntN(10) < 3 {
							time.AfterFunc(time.Duration(random.Int64N(int64(100*time.Millisecond))), cancel)
						}
						second := r
						second.Limiter, second.Limit.Limit = "second", test.second
						g, err := limiter.DoAll(ctx, pglimit.Request{Limiter: "second", Key: "k", Tokens: 1, Limit: test.second, MaxWait: time.Duration(random.Int64N(int64(400*time.Millisecond))) + 1},
							pglimit.Request{Key: "k", Tokens: 1})
						cancel()
						switch {
						case err == nil:
							granted.Add(1)
						case errors.Is(err, pglimit.ErrWaitTooLong):
							tooLong.Add(1)
							runtime.Gosched()
						case errors.Is(err, context.Canceled):
							gaveUp.Add(1)
							add(&log, r.Answered(pglimit.Decision{}, err))
							add(&log, second.Answered(pglimit.Decision{}, err))
							continue
						default:
							t.Error(err)
							return
						}
						if g.Allowed != (err == nil) || (g.Decisions[0].Granted > 0) != g.Allowed || (g.Decisions[1].Granted > 0) != g.Allowed {
							t.Errorf("%+v, %v", g, err)
						}
						for j, r := range []audit.Record{second, r} {
							d := g.Decisions[j]
							add(&log, r.Answered(d, nil))
							if d.Delay = g.Delay; g.Allowed && !test.alone {
								add(&used, r.Answered(d, nil))
							}
						}
					}
				})
			}
			work.Wait()
			var stats pglimit.Stats
			for _, limiter := range limiters {
				closeLeasing(t, limiter)
				stats = stats.Plus(limiter.Stats())
			}
			t.Logf("%d granted, %d gave up, %d would have waited too long; %+v", granted.Load(), gaveUp.Load(), tooLong.Load(), stats)
			if granted.Load() < 100 || gaveUp.Load() < 20 || stats.GivenBack == 0 {
				t.Errorf("%d granted, %d gave up: %+v", granted.Load(), gaveUp.Load(), stats)
			}
			d, err := newLimiter(t, admin, strategies.TokenBucket{}, config).Do(t.Context(), pglimit.Request{Limiter: "second", Key: "k", Limit: test.second})
			must(t, err)
			if left := d.Remaining + granted.Load(); test.second.Token() == time.Hour && (left > test.second.Burst || left < test.second.Burst-1) { // less what came back while they waited
				t.Errorf("%d were used, and %d are left: %+v", granted.Load(), d.Remaining, d)
			}
			for _, judged := range slices.Concat(log.Check(), used.Check()) {
				t.Logf("%v", judged.Report)
				if !judged.OK() {
					t.Errorf("%s: %v", judged.Limiter, judged.Report)
				}
			}
			if n := finalDeadlocks(t, admin, pools...); n > 0 {
				t.Errorf("%d deadlocks", n)
			}
		})
	}
}

// A group waits through database/sql as it does through a pool of pgx's.
func TestGroupsWaitOverDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.Every(100 * time.Millisecond)
	for i, driver := range sqlDrivers {
		limiter := newSQLLimiter(t, openSQL(t, driver.open, databaseURL(pool), 4), pglimit.Config{Name: fmt.Sprint("test", i), Limit: limit})
		group := []pglimit.Request{{Key: "k", Tokens: 1, MaxWait: time.Minute}, {Limiter: "year", Key: driver.name, Tokens: 1, Limit: pglimit.PerYear(9)}}
		var last time.Time
		for range 3 {
			g, err := limiter.DoAll(t.Context(), group...)
			if err != nil || !g.Allowed {
				t.Fatalf("%s: %+v, %v", driver.name, g, err)
			}
			due := g.Decisions[0].At.Add(g.Delay)
			if due.Sub(last) < limit.Token() {
				t.Errorf("%s: due %v after the one before", driver.name, due.Sub(last))
			}
			last = due
		}
		d, err := limiter.Do(t.Context(), pglimit.Request{Limiter: "year", Key: driver.name, Limit: pglimit.PerYear(9)})
		if err != nil || d.Remaining != 6 {
			t.Errorf("%s: %+v, %v", driver.name, d, err)
		}
	}
}

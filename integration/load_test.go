package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// load is a closed loop of callers on several pools, as if they were as many
// instances of a service, each caller with a request under way at all times.
type load struct {
	strategy strategies.Strategy
	pools    []*pgxpool.Pool
	limit    pglimit.Limit
	callers  int
	keys     int
	costs    []int64 // drawn at random; none: 1
}

// run until ctx ends, and ask once at least: a process that the machine does not run for a while finds ctx over.
// An error of a take is the test's.
func (l load) run(ctx context.Context, t testing.TB) (report audit.Report, decisions int64) {
	t.Helper()
	histories := make([]audit.Histories, l.callers)
	var made atomic.Int64
	var work sync.WaitGroup
	for i := range histories {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for once := false; !once || ctx.Err() == nil; once = true {
				r := rate.Request{Limiter: "load", Key: "key:" + strconv.Itoa(random.IntN(l.keys)), Limit: l.limit, Tokens: 1, Unit: 1}
				if len(l.costs) > 0 {
					r.Tokens = l.costs[random.IntN(len(l.costs))]
					r.Unit = r.Tokens
				}
				got, err := l.strategy.Take(context.WithoutCancel(ctx), on(l.pools[i%len(l.pools)]), []rate.Request{r})
				if err != nil {
					t.Error(err)
					return
				}
				made.Add(1)
				histories[i].Record(r.Key, r.Tokens, r.Unit, got[0])
			}
		})
	}
	work.Wait()
	var all audit.Histories
	for i := range histories {
		all.Merge(&histories[i])
	}
	return all.Check(l.strategy.Rule(), l.limit), made.Load()
}

// twoPools are the pools of two instances.
func twoPools(t *testing.T, pool *pgxpool.Pool, conns int) []*pgxpool.Pool {
	t.Helper()
	url := databaseURL(pool)
	return []*pgxpool.Pool{newPool(t, url, int32(conns/2)), newPool(t, url, int32(conns/2))}
}

// soon is a context that ends so far from now.
func soon(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

const deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"

// eachInTurn is eachStrategy one after another, for those that take the limit.
func eachInTurn(t *testing.T, limit pglimit.Limit, test func(*testing.T, *pgxpool.Pool, strategies.Strategy)) {
	t.Helper()
	pool := newMigrated(t)
	for _, strategy := range allStrategies {
		if strategy.Check(&rate.Request{Limit: limit}) == nil {
			t.Run(strategy.Name(), func(t *testing.T) { test(t, pool, strategy) })
		}
	}
}

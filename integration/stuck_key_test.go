package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A session holds the row of one key for a while. In two processes, callers of 199 other
// keys have no failure and no long wait, whatever the timeouts of the role; those of the
// held key get their answer when the session ends, or the error of a timeout before.
//
// Not parallel: what contends here is the callers, not other tests.
func TestAHeldKeyStallsNobodyElse(t *testing.T) {
	const held = 800 * time.Millisecond
	for _, test := range []struct {
		name     string
		strategy strategies.Strategy
		settings map[string]string
		fails    bool // the caller of the held key
	}{
		{"token_bucket", strategies.TokenBucket{}, nil, false},
		{"token_bucket, lock_timeout", strategies.TokenBucket{}, map[string]string{"lock_timeout": "100ms"}, true},
		{"token_bucket, statement_timeout", strategies.TokenBucket{}, map[string]string{"statement_timeout": "400ms"}, true},
		{"token_bucket, deadlock_timeout of 1ms", strategies.TokenBucket{}, map[string]string{"deadlock_timeout": "1ms"}, false},
		{"upsert", strategies.Upsert{}, nil, false},
		{"upsert, lock_timeout", strategies.Upsert{}, map[string]string{"lock_timeout": "100ms"}, true},
		{"upsert, deadlock_timeout of 1ms", strategies.Upsert{}, map[string]string{"deadlock_timeout": "1ms"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			admin := newMigrated(t)
			url := databaseURL(admin)
			for name, value := range test.settings {
				url = withParameter(url, name, value)
			}
			config := pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1000).WithBurst(1000)}
			pools := []*pgxpool.Pool{newPool(t, url, 8), newPool(t, url, 8)}
			var limiters []*pglimit.Limiter
			for _, pool := range pools {
				warmUp(t, pool, 8) // how long it takes to connect is not the question
				limiters = append(limiters, newLimiter(t, pool, test.strategy, config))
			}
			take(t, admin, test.strategy, "key:0", config.Limit)
			before := query[int64](t, admin, deadlocks)

			holder := session(t, admin)
			execute(t, holder, "select from pglimit."+test.strategy.Name()+" where key = 'key:0' for update")
			began := time.Now()
			var callers sync.WaitGroup
			for i := range 4 { // of the held key
				callers.Go(func() {
					d, err := limiters[i%2].Allow(t.Context(), "key:0")
					waited := time.Since(began)
					switch {
					case test.fails:
						if err == nil || waited >= held {
							t.Errorf("a caller of the held key: %+v, %v after %v", d, err, waited)
						}
					case err != nil || !d.Allowed || waited < held:
						t.Errorf("a caller of the held key: %+v, %v after %v", d, err, waited)
					}
				})
			}
			const others = 16
			var latencies [others]*hdrhistogram.Histogram
			ctx := soon(t, held)
			for i := range latencies {
				latencies[i] = hdrhistogram.New(1, 60_000_000, 3)
				callers.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), 23))
					for ctx.Err() == nil {
						asked := time.Now()
						key := "key:" + strconv.Itoa(1+random.IntN(199))
						if _, err := limiters[i%2].Allow(context.WithoutCancel(ctx), key); err != nil {
							t.Errorf("%s failed after %v: %v", key, time.Since(asked), err)
							return
						}
						_ = latencies[i].RecordValue(max(1, time.Since(asked).Microseconds()))
						if random.IntN(200) == 0 { // so that rows are made again and again
							if err := limiters[i%2].Reset(context.WithoutCancel(ctx), key); err != nil {
								t.Errorf("reset of %s: %v", key, err)
							}
						}
					}
				})
			}
			<-ctx.Done()
			time.Sleep(time.Until(began.Add(held))) //nolint:forbidigo // callers that were answered before did not wait
			if err := holder.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			callers.Wait()

			all := hdrhistogram.New(1, 60_000_000, 3)
			for _, latency := range latencies {
				all.Merge(latency)
			}
			p99, worst := time.Duration(all.ValueAtQuantile(99))*time.Microsecond, time.Duration(all.Max())*time.Microsecond
			t.Logf("%d decisions about other keys, p99 %v, worst %v", all.TotalCount(), p99, worst)
			// A call gives up after 20 ms. The rest is for machines that are busy with other things.
			if p99 > held*2/3 || worst > held || all.TotalCount() < 2*others {
				t.Errorf("%d decisions about other keys, p99 %v, worst %v", all.TotalCount(), p99, worst)
			}
			for _, l := range limiters {
				if err := l.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if after := finalDeadlocks(t, admin, pools...); after != before {
				t.Errorf("%d deadlocks", after-before)
			}
		})
	}
}

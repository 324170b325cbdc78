package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// instance is a service of its own: a pool, the limits as it has read them, and a Limiter.
type instance struct {
	limits  *pglimit.Limits
	limiter *pglimit.Limiter
}

func instances(t *testing.T, pool *pgxpool.Pool, n int, config pglimit.Config) []instance {
	t.Helper()
	all := make([]instance, n)
	for i := range all {
		own := newPool(t, databaseURL(pool), 8)
		all[i].limits = pglimit.LimitsFrom(own, pglimit.LimitsConfig{Every: 20 * time.Millisecond})
		config.Limits = all[i].limits
		all[i].limiter = newLimiter(t, own, strategies.TokenBucket{}, config)
		t.Cleanup(func() { must(t, all[i].limiter.Close(context.Background())) })
	}
	return all
}

// see waits until all instances hold the limits that are committed now.
func see(t *testing.T, pool *pgxpool.Pool, all []instance) {
	t.Helper()
	version := query[int64](t, pool, "select coalesce(max(id), 0) from pglimit.limits_history")
	for _, in := range all {
		for in.limits.Status().Version < version {
			<-soon(t, time.Millisecond).Done()
		}
	}
}

// 64 callers of three instances, while a thousand changes of the limit come, and rules for one key come and go: each
// decision is under a limit that was set, nothing is over what the loosest grants, and no call fails.
//
// Not parallel: what contends here is the callers, not other tests.
func TestLimitsChangeUnderLoad(t *testing.T) {
	pool := newMigrated(t)
	texts := []string{"50/1s burst 50", "100/1s burst 100", "400/1s burst 20", "20/1s burst 20"}
	set := make(map[pglimit.Limit]bool)
	var all []pglimit.Limit
	for _, text := range texts {
		limit, err := pglimit.ParseLimit(text)
		must(t, err)
		set[limit], all = true, append(all, limit)
	}
	execute(t, pool, "select pglimit.set_limit('api', $1, note => 'first')", texts[0])
	services := instances(t, pool, 3, pglimit.Config{Name: "api", Limit: hours.WithBurst(1700), Leases: pglimit.Leases{On: true, TTL: 100 * time.Millisecond}})
	var work sync.WaitGroup
	var changed atomic.Bool
	histories := make([]audit.History, 64)
	for i := range histories {
		limiter := services[i%3].limiter
		work.Go(func() {
			for !changed.Load() {
				d, err := limiter.Allow(t.Context(), "k")
				if err != nil || d.Rule == nil || !set[d.Limit] || d.Rule.Limit != d.Limit {
					t.Errorf("%+v, %v", d, err)
					return
				}
				histories[i].Add(audit.Event{At: d.At.UnixNano(), Granted: d.Granted})
				<-time.After(time.Millisecond) // who changes limits needs a processor, too
			}
		})
	}
	random := rand.New(rand.NewPCG(25, 1))
	for i := range 1000 {
		switch text := texts[random.IntN(len(texts))]; random.IntN(4) {
		case 0:
			execute(t, pool, "select pglimit.set_limit('api', $1, key => 'k', note => 'boost')", text)
		case 1:
			execute(t, pool, "select pglimit.delete_limit('api', 'k', note => 'no boost')")
		default:
			execute(t, pool, "select pglimit.set_limit('api', $1, note => 'change')", text)
		}
		if i%50 == 0 {
			see(t, pool, services)
		}
	}
	see(t, pool, services)
	changed.Store(true)
	work.Wait()
	var history audit.History
	for i := range histories {
		history.Merge(&histories[i])
	}
	if report := history.Check(all[0], all[1:]...); report.Over.Tokens > 0 || report.Err != nil || report.Granted == 0 {
		t.Error(report)
	}
}

// A tenant whose limit was lowered is not let through by what is remembered, leased or reserved, nor is one denied
// whose limit was raised.
func TestALimitIsLoweredAndRaised(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('api', '1000/1h', note => 'all')")
	services := instances(t, pool, 2, pglimit.Config{Name: "api", Limit: hours.WithBurst(1700), Memory: pglimit.Memory{TTL: time.Hour}, Leases: pglimit.Leases{On: true, TTL: 10 * time.Second}})
	take := func(key string, n int) (granted int64) {
		for i := range n {
			d, err := services[i%2].limiter.Allow(t.Context(), key)
			must(t, err)
			granted += d.Granted
		}
		return granted
	}
	if got := take("k", 200); got != 200 {
		t.Errorf("%d granted of 200", got)
	}
	execute(t, pool, "select pglimit.set_limit('api', '10/1h', key => 'k', note => 'lowered')")
	see(t, pool, services)
	if got := take("k", 50); got != 0 {
		t.Errorf("%d granted, and 200 of 10 are used", got)
	}
	execute(t, pool, "select pglimit.set_limit('api', '500/1h', key => 'k', note => 'raised')")
	see(t, pool, services)
	if got := take("k", 10); got != 10 {
		t.Errorf("%d granted of 10, and 200 of 500 are used", got)
	}
	execute(t, pool, "select pglimit.delete_limit('api', 'k', note => 'as all')")
	see(t, pool, services)
	if d, err := services[0].limiter.Allow(t.Context(), "k"); err != nil || d.Limit != pglimit.Per(1000, time.Hour) {
		t.Errorf("%+v, %v", d, err)
	}
}

// The table empty, locked, missing, back again; a change that commits late, and another one behind it.
func TestTheLastLimitsHold(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('api', '5/1h', note => 'first')")
	services := instances(t, pool, 1, pglimit.Config{Name: "api", Limit: hours.WithBurst(1700), Timeout: time.Minute})
	limit := func() int64 {
		d, err := services[0].limiter.Peek(t.Context(), "k")
		must(t, err)
		return d.Limit.Burst
	}
	want := func(burst int64, when string) {
		t.Helper()
		if got := limit(); got != burst {
			t.Errorf("%s: a burst of %d, want %d", when, got, burst)
		}
	}
	fails := func(with error) {
		t.Helper()
		for !errors.Is(services[0].limits.Status().Err, with) {
			<-soon(t, time.Millisecond).Done()
		}
	}
	want(5, "first")

	late := begin(t, pool)
	execute(t, late, "select pglimit.set_limit('api', '6/1h', note => 'late')")
	want(5, "not committed")
	whileBlocked(t, pool, func() { execute(t, pool, "select pglimit.set_limit('api', '7/1h', note => 'behind')") }, func() { commit(t, late) })
	see(t, pool, services)
	want(7, "both committed")

	locked := begin(t, pool)
	execute(t, locked, "lock table pglimit.limits in access exclusive mode")
	fails(pglimit.ErrUnavailable)
	want(7, "locked")
	other := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 20 * time.Millisecond})
	fresh := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours.WithBurst(1700), Limits: other, Timeout: 50 * time.Millisecond})
	if d, err := fresh.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrNoLimits) || !errors.Is(err, pglimit.ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
	must(t, fresh.Close(t.Context()))
	commit(t, locked)

	execute(t, pool, "alter table pglimit.limits rename to hidden")
	fails(pglimit.ErrNotMigrated)
	want(7, "missing")
	execute(t, pool, "alter table pglimit.hidden rename to limits")
	execute(t, pool, "select pglimit.set_limit('api', '8/1h', note => 'back', expires_at => clock_timestamp() + interval '300 ms')")
	see(t, pool, services)
	want(8, "back")
	for limit() != 1700 { // it expires, and no row is left that holds
		<-soon(t, time.Millisecond).Done()
	}
	execute(t, pool, "delete from pglimit.limits")
	see(t, pool, services)
	want(1700, "empty")
}

// Reading needs no right but to read, and works on a standby.
func TestLimitsAreReadWithoutARightToWrite(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('api', '5/1h', note => 'first')")
	reader := newPool(t, databaseURL(pool)+"&default_transaction_read_only=on", 2)
	limits := pglimit.LimitsFrom(reader, pglimit.LimitsConfig{Every: 20 * time.Millisecond})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours.WithBurst(1700), Limits: limits})
	if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Limit.Burst != 5 {
		t.Errorf("%+v, %v", d, err)
	}
	must(t, limiter.Close(t.Context()))
}

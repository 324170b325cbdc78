package integration

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
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
		t.Cleanup(func() { closeLeasing(t, all[i].limiter) })
	}
	return all
}

// see waits until all instances hold the limits that are committed now.
func see(t *testing.T, pool *pgxpool.Pool, all []instance) {
	t.Helper()
	version := query[int64](t, pool, "select coalesce(max(id), 0) from pglimit.limits_history")
	for _, in := range all {
		until(t, "the limits are read", func() bool { return in.limits.Status().Version >= version })
	}
}

// until it is so, or the test fails.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for patience := soon(t, 2*time.Minute); !so(); <-time.After(time.Millisecond) {
		if patience.Err() != nil {
			t.Fatalf("it never comes that %s", what)
		}
	}
}

// 64 callers of three instances, while hundreds of changes of the limit come, and rules for one key come and go: each
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
	for i := range 400 {
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
	if report := history.Check(nil, all[0], all[1:]...); report.Over.Tokens > 0 || report.Err != nil || report.Granted == 0 {
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

// What was denied under a rule that was away meanwhile is not recalled when it is back. Rules that nobody reads any
// more hold for nobody.
func TestRulesThatAreBackAndRulesThatAreNotRead(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	config := pglimit.Config{Name: "api", Limit: pglimit.Per(10, time.Hour), Memory: pglimit.Memory{TTL: time.Hour}}
	service := instances(t, pool, 1, config)
	limiter := service[0].limiter
	for range 11 {
		_, err := limiter.Allow(t.Context(), "k")
		must(t, err)
	}
	execute(t, pool, "select pglimit.set_limit('api', '100000/s', key => 'k', note => 'a boost')")
	see(t, pool, service)
	execute(t, pool, "select pglimit.reset('api', 'k')") // by another process
	execute(t, pool, "select pglimit.delete_limit('api', 'k', note => 'its end')")
	see(t, pool, service)
	if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}

	limits := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 10 * time.Millisecond})
	config.Limits = limits
	for _, allowed := range []bool{true, false} {
		limiter := newLimiter(t, pool, strategies.TokenBucket{}, config)
		if d, err := limiter.Allow(t.Context(), "tenant"); err != nil || d.Allowed != allowed {
			t.Errorf("%+v, %v: want %t", d, err, allowed)
		}
		must(t, limiter.Close(t.Context()))
		if d, err := limiter.Allow(t.Context(), "tenant"); allowed && !errors.Is(err, pglimit.ErrClosed) || !allowed && (err != nil || d.Allowed) {
			t.Errorf("after Close: %+v, %v", d, err) // what a rule denies is known without Postgres
		}
		execute(t, pool, "select pglimit.set_limit('api', key => 'tenant', action => 'deny', note => 'banned')")
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
		until(t, "the table cannot be read", func() bool { return errors.Is(services[0].limits.Status().Err, with) })
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

	execute(t, pool, "select pglimit.set_limit('api', '9/1h', note => 'boost', key => 'k')")
	see(t, pool, services)
	want(9, "boost")
	execute(t, pool, "select pglimit.set_limit('api', '11/1h', note => 'for a second', key => 'k', expires_at => clock_timestamp() + interval '1 second')")
	see(t, pool, services)
	execute(t, pool, "alter table pglimit.limits rename to hidden")
	fails(pglimit.ErrNotMigrated)
	until(t, "what has expired ends, although nobody can read that", func() bool { return limit() == 9 })
	if now, ends := query[time.Time](t, pool, "select clock_timestamp()"), query[time.Time](t, pool, "select expires_at from pglimit.hidden where key = 'k' and temporary"); now.Before(ends) {
		t.Errorf("it ended before %v", ends)
	}
	execute(t, pool, "alter table pglimit.hidden rename to limits")
	execute(t, pool, "select pglimit.delete_limit('api', 'k', note => 'its end')")
	execute(t, pool, "select pglimit.set_limit('api', '8/1h', note => 'back')")
	see(t, pool, services)
	want(8, "back")
	execute(t, pool, "select pglimit.delete_limit('api', note => 'its end')")
	execute(t, pool, "select pglimit.set_limit('api', '8/1h', note => 'for a moment', expires_at => clock_timestamp() + interval '300 ms')")
	until(t, "it expires, and no row is left that holds", func() bool { return limit() == 1700 })
	execute(t, pool, "delete from pglimit.limits")
	see(t, pool, services)
	want(1700, "empty")

	execute(t, pool, "select pglimit.set_limit('api', '8/1h', note => 'again')")
	see(t, pool, services)
	execute(t, pool, `delete from pglimit.limits; truncate pglimit.limits_history restart identity; -- as after down and up
		select pglimit.set_limit('api', '4/1h', note => 'restored')`)
	until(t, "the new table is read", func() bool { return limit() == 4 })
}

// LimitsFromSQL reads the table with every driver.
func TestLimitsFromSQL(t *testing.T) {
	t.Parallel()
	for _, driver := range sqlDrivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, "select pglimit.set_limit('api', '5/1h', note => 'über', expires_at => now() + interval '1 day')")
			db := openSQL(t, driver.open, databaseURL(pool), 4)
			limiter := newSQLLimiter(t, db, pglimit.Config{Name: "api", Limit: hours, Limits: pglimit.LimitsFromSQL(db, pglimit.LimitsConfig{})})
			if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Rule == nil || d.Rule.Note != "über" || d.Limit.Burst != 5 {
				t.Errorf("%+v, %v", d, err)
			}
			must(t, limiter.Close(t.Context()))
		})
	}
}

// The log says when the table cannot be read, and when it can again, once each; and who is switched off.
func TestTheLogOfLimits(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	var log lines
	const every = 2 * time.Second // also the longest time that a read may take: on a busy machine it may be long
	limits := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: every, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: limits})
	_, err := limiter.Allow(t.Context(), "k")
	must(t, err)
	says := func(want ...string) {
		t.Helper()
		until(t, "it says "+want[len(want)-1], func() bool { return len(log.all()) >= len(want) })
		for i, line := range log.all() {
			if i == len(want) || !strings.Contains(line, want[i]) {
				t.Fatalf("%q, want %q", log.all(), want)
			}
		}
	}
	execute(t, pool, "alter table pglimit.limits rename to hidden")
	says("level=ERROR msg=\"pglimit: the limits cannot be read, those of the last time hold\" error=")
	<-soon(t, 2*every).Done() // it is tried again and again, and said once
	execute(t, pool, "alter table pglimit.hidden rename to limits")
	says("ERROR", "level=INFO msg=\"pglimit: the limits were read\" version=0 rules=0")
	execute(t, pool, "select pglimit.set_limit('api', action => 'off', note => 'ticket 7')")
	says("ERROR", "INFO", "level=WARN msg=\"pglimit: switched off, everything is granted\" limiter=api row=1 note=\"ticket 7\"")
	execute(t, pool, "select pglimit.delete_limit('api', kind => 'off', note => 'ticket 7')")
	says("ERROR", "INFO", "WARN", "level=WARN msg=\"pglimit: no longer switched off\" limiter=api row=1")
	must(t, limiter.Close(t.Context()))
	if all := log.all(); len(all) != 4 {
		t.Errorf("%q", all)
	}
}

// lines of a log.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, string(line))
	return len(line), nil
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// Where the database's clock is a day ahead of the process's, rules end by the database's, and RetryAfter is by it too.
func TestLimitsAndClocksApart(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, query[string](t, pool, "select replace(pg_get_functiondef('pglimit.limits_since'::regproc), 'clock_timestamp()', '(clock_timestamp() + interval ''1 day'')')"))
	execute(t, pool, "select pglimit.set_limit('api', action => 'deny', key => 'over', note => 'why', expires_at => clock_timestamp() + interval '23 hours')")
	execute(t, pool, "select pglimit.set_limit('api', action => 'deny', key => 'k', note => 'why', expires_at => clock_timestamp() + interval '25 hours')")
	services := instances(t, pool, 1, pglimit.Config{Name: "api", Limit: hours})
	if d, err := services[0].limiter.Allow(t.Context(), "over"); err != nil || !d.Allowed || d.Rule != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := services[0].limiter.Allow(t.Context(), "k"); err != nil || d.Allowed || d.RetryAfter > time.Hour+time.Second || d.RetryAfter < 59*time.Minute || time.Until(d.At) < 23*time.Hour {
		t.Errorf("%+v, %v", d, err)
	}
}

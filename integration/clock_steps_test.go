package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// stepsOfTheClock is how far it goes each time, and whether some of them are forward.
var stepsOfTheClock = []struct {
	steps    []time.Duration
	forwards int64
}{
	{[]time.Duration{-30 * time.Second, -30 * time.Second}, 0},
	{[]time.Duration{2 * time.Minute, -2 * time.Minute}, 1},
	{[]time.Duration{-24 * time.Hour}, 0},
}

// The database's clock steps while 16 callers take. By the time that really passes they
// are never granted too much: after a step forward there is one more burst, after one back
// there is none. Half of them have a Limiter with all its stages, the others ask the
// strategy, for one key or several.
func TestNeverOverInRealTimeWhenTheClockSteps(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		execute(t, pool, steppingClock)
		limit := pglimit.PerSecond(20).WithBurst(50)
		if strategy.Check(&rate.Request{Limit: limit}) != nil {
			limit = pglimit.PerSecond(20).WithBurst(1)
		}
		pools := twoPools(t, pool, 16)
		for i, c := range stepsOfTheClock {
			key := fmt.Sprint(c.steps)
			limiter := newLimiter(t, pools[0], strategy, pglimit.Config{Name: "test", Limit: limit})
			report, latency := takeWhile(t, limiter, pools[1], strategy, fmt.Sprint(i), func() {
				for _, by := range c.steps {
					passes(t, pool, 60*time.Millisecond)
					step(t, pool, by)
				}
				passes(t, pool, 120*time.Millisecond)
			})
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			// When a grant was made is known to within the time that its call took.
			tolerance := 1 + int64(latency/limit.Token()) + c.forwards*limit.Burst
			t.Logf("%s: %v (calls took up to %v)", key, report, latency)
			if report.Err != nil || report.Over.Tokens > tolerance || report.Granted == 0 {
				t.Errorf("%s: over by more than %d: %v", key, tolerance, report)
			}
		}
	})
}

// takeWhile has 16 callers take until during returns. The events are dated by this
// process's clock, when the answer came.
func takeWhile(t *testing.T, limiter *pglimit.Limiter, pool *pgxpool.Pool, strategy strategies.Strategy, key string, during func()) (audit.Report, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	var histories [16]audit.History
	var longest [16]time.Duration
	var callers sync.WaitGroup
	for i := range histories {
		callers.Go(func() {
			request := rate.Request{Limiter: "test", Key: key, Limit: limiter.Limit(), Tokens: 1, Unit: 1}
			several := []rate.Request{request, request}
			several[1].Key += " and more"
			for n := 0; ctx.Err() == nil; n++ {
				asked := time.Now()
				var d pglimit.Decision
				var err error
				if i%2 == 0 {
					d, err = limiter.Allow(t.Context(), key)
				} else {
					var decisions []pglimit.Decision
					decisions, err = strategy.Take(t.Context(), on(pool), several[:1+n%2])
					if err == nil {
						d = decisions[0]
					}
				}
				switch {
				case errors.Is(err, pglimit.ErrNothingTaken) && i%2 == 1 && n%2 == 1:
					continue // next time it asks for one
				case err != nil:
					t.Error(err)
					return
				}
				answered := time.Now()
				if d.Granted > 0 {
					longest[i] = max(longest[i], answered.Sub(asked))
				}
				e := audit.FromDecision(request.Tokens, request.Unit, d)
				e.At = answered.Sub(began).Nanoseconds()
				histories[i].Add(audit.Event{At: e.At, Granted: e.Granted})
			}
		})
	}
	during()
	cancel()
	callers.Wait()
	var all audit.History
	var latency time.Duration
	for i := range histories {
		all.Merge(&histories[i])
		latency = max(latency, longest[i])
	}
	return all.Check(nil, limiter.Limit()), latency
}

// The clock may step back while a call goes on, between any two of its readings: then, too, the
// bucket owes what it owed, and not the length of the step.
func TestNobodyIsLockedOutWhenTheClockStepsBackDuringACall(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	execute(t, pool, `create sequence public.readings minvalue -1000;
		create or replace function pglimit.clock_ns() returns bigint
		language sql volatile
		return (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000
			- case when pg_catalog.nextval('public.readings') > 0 then 3600000000000 else 0 end`)
	stepsBackAfter := func(readings int) { execute(t, pool, "select setval('public.readings', $1)", -readings) }
	limit := hours.WithBurst(100)
	for readings := range 8 { // more than a call has
		for state, owes := range map[string]int64{"a missing row": 0, "a row": 1, "a row ahead": 1} {
			for _, leases := range []bool{false, true} {
				key := fmt.Sprintf("%s, lease %t, %d readings", state, leases, readings)
				stepsBackAfter(900)
				if owes > 0 {
					take(t, pool, s, key, limit)
				}
				if state == "a row ahead" {
					age(t, pool, s, -time.Minute)
				}
				stepsBackAfter(readings)
				var granted int64
				if leases {
					lease, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: key, Limit: limit, Tokens: 5, Share: 1, TTL: time.Hour})
					if err != nil {
						t.Fatal(key, err)
					}
					granted = lease.Tokens
				} else {
					granted = take(t, pool, s, key, limit).Granted
				}
				stepsBackAfter(0)
				// The next call corrects the row if it is ahead.
				granted += take(t, pool, s, key, limit).Granted
				d := takeAll(t, pool, s, rate.Request{Limiter: "test", Key: key, Limit: limit, Unit: 1})[0]
				if left := limit.Burst - owes - granted; granted == 0 || d.Remaining != left {
					t.Errorf("%s: %d are left, want %d", key, d.Remaining, left)
				}
			}
		}
	}
}

func takeAll(t *testing.T, db database, strategy strategies.Strategy, requests ...rate.Request) []pglimit.Decision {
	t.Helper()
	decisions, err := taken(db, func() ([]pglimit.Decision, error) { return strategy.Take(t.Context(), on(db), requests) })
	must(t, err)
	return decisions
}

// A take waits for a row, and meanwhile the clock steps back and the other call corrects the row and takes the rest.
// The time that was read before the wait would find all refilled.
func TestTheClockStepsBackWhileATakeWaits(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	windowClock(t, db, "2026-11-20 12:00:00+00")
	allowText(t, db, "k", "10/1h", 5)
	tx := begin(t, db)
	execute(t, tx, "select from pglimit.token_bucket for update")
	granted := true
	whileBlocked(t, db, func() { granted = allowText(t, db, "k", "10/1h", 1) }, func() {
		windowClock(t, db, "2026-11-20 11:00:00+00")
		if !allowText(t, tx, "k", "10/1h", 5) {
			t.Error("five were left")
		}
		commit(t, tx)
	})
	if granted || !query[bool](t, db, "select at_ns = pglimit.clock_ns() and full_ns = at_ns + 3600000000000 from pglimit.token_bucket") {
		t.Errorf("granted %t, or what was owed is not owed", granted)
	}
}

// The same for a call for several keys: it fails, takes nothing, and may be made again.
func TestTheClockStepsBackWhileACallForSeveralKeysWaits(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	windowClock(t, db, "2026-11-20 12:00:00+00")
	patiently(t, db)
	for _, key := range []string{"a", "b"} {
		allowText(t, db, key, "10/1h", 5)
	}
	tx := begin(t, db)
	execute(t, tx, "select from pglimit.token_bucket where key = 'a' for update")
	var err error
	whileBlocked(t, db, func() {
		_, err = db.Exec(t.Context(), `select pglimit.token_bucket_take_many('{a,b}', '{test}', '{360000000000}', '{3600000000000}', '{1}',
			null, null, null, null, null, false, '20ms')`)
	}, func() {
		windowClock(t, db, "2026-11-20 11:00:00+00")
		allowText(t, tx, "a", "10/1h", 5)
		commit(t, tx)
	})
	if sqlState(err) != "40001" {
		t.Errorf("planned before the step: %v", err)
	}
	if !query[bool](t, db, "select at_ns = pglimit.clock_ns() and full_ns = at_ns + 3600000000000 from pglimit.token_bucket where key = 'a'") {
		t.Error("what was owed is not owed")
	}
}

// Tokens that are leased count as used in a calendar window.
func TestLeasedTokensCountInAWindow(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	windowClock(t, db, "2026-11-20 12:00:00+00")
	execute(t, db, "select pglimit.token_bucket_lease('k', 'test', 360000000000, 3600000000000, 4, 1, 60000000000, 0, 0, 0)")
	const day = "10/day fixed"
	if allowText(t, db, "k", day, 7) || !allowText(t, db, "k", day, 6) || allowText(t, db, "k", day, 1) {
		t.Error("four are leased, so six are left")
	}
}

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
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// steppingClock is the real clock and an offset that the test changes. (Its table has an
// index because pglimit's functions dislike sequential scans.)
const steppingClock = `
	create table if not exists public.clock (id int primary key, offset_ns bigint);
	insert into public.clock values (1, 0) on conflict (id) do update set offset_ns = 0;
	create or replace function pglimit.clock_ns() returns bigint
	language sql volatile
	return (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000 + (select offset_ns from public.clock where id = 1)`

// stepsOfTheClock is how far it goes each time, and whether some of them are forward.
var stepsOfTheClock = []struct {
	steps    []time.Duration
	forwards int64
}{
	{[]time.Duration{-time.Second}, 0},
	{[]time.Duration{time.Second}, 1},
	{[]time.Duration{-30 * time.Second, -30 * time.Second}, 0},
	{[]time.Duration{30 * time.Second}, 1},
	{[]time.Duration{-2 * time.Minute}, 0},
	{[]time.Duration{2 * time.Minute, -2 * time.Minute}, 1},
	{[]time.Duration{-24 * time.Hour}, 0},
	{[]time.Duration{24 * time.Hour, -24 * time.Hour}, 1},
}

func step(t *testing.T, pool *pgxpool.Pool, by time.Duration) {
	t.Helper()
	execute(t, pool, "update public.clock set offset_ns = offset_ns + $1", by.Nanoseconds())
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
		if strategy.Check(&pglimit.Request{Limit: limit}) != nil {
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
			request := pglimit.Request{Limiter: "test", Key: key, Limit: limiter.Limit(), Tokens: 1, Unit: 1}
			several := []pglimit.Request{request, request}
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
				e := audit.FromDecision(request, d)
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
	return all.Check(limiter.Limit()), latency
}

// After the clock stepped back, nobody is locked out for the length of the step: a key
// that was at its limit is granted a token when RetryAfter says so, which is within the
// time of a token (in a window: within the window; by a cold key: in that of three), and one that was under its limit at once.
func TestNobodyIsLockedOutWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	const token = 50 * time.Millisecond
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		execute(t, pool, steppingClock)
		limit := inParts(strategy, pglimit.Every(token).WithBurst(10))
		most := token // until something comes back
		if strategy.Rule() != (strategies.TokenBucket{}).Rule() {
			most = limit.Window()
		}
		if strategy.Name() == "warm_up" {
			most = 3 * token // of a cold key
		}
		for _, by := range []time.Duration{-time.Second, -30 * time.Second, -2 * time.Minute, -24 * time.Hour} {
			under, used := "under "+by.String(), "used "+by.String()
			partly, sold := "partly "+by.String(), "sold out "+by.String()
			if limit.Burst > 1 {
				take(t, pool, strategy, under, limit)
			}
			all := pglimit.Request{Limiter: "test", Limit: limit, Tokens: limit.Burst, Unit: 1}
			for _, key := range []string{used, partly, sold} {
				all.Key = key
				if d := takeAll(t, pool, strategy, all)[0]; d.Granted != all.Tokens {
					t.Fatalf("%+v", d)
				}
			}
			step(t, pool, by)
			if d := take(t, pool, strategy, under, limit); !d.Allowed {
				t.Errorf("%v: a key under its limit is denied: %+v", by, d)
			}
			// However it is asked: all or nothing, as much as there is, several times in a call.
			for key, requests := range map[string][]pglimit.Request{
				used:   {{Key: used, Tokens: 1, Unit: 1}},
				partly: {{Key: partly, Tokens: 5, Unit: 1}},
				sold:   {{Key: sold, Tokens: 1, Unit: 1}, {Key: sold, Tokens: 0, Unit: 1}},
			} {
				for i := range requests {
					requests[i].Limiter, requests[i].Limit = "test", limit
				}
				ask := func() pglimit.Decision { return takeAll(t, pool, strategy, requests...)[0] }
				denied := ask()
				if denied.Allowed {
					continue // the machine was slow
				}
				if denied.RetryAfter <= 0 || denied.RetryAfter > most {
					t.Errorf("%s: %+v: want a RetryAfter of at most %v", key, denied, most)
					continue
				}
				due := denied.At.Add(denied.RetryAfter)
				d := ask()
				for ; !d.Allowed; d = ask() {
					if !d.At.Before(due) {
						t.Errorf("%s: denied %v after RetryAfter: %+v", key, d.At.Sub(due), d)
						break
					}
				}
				if d.Allowed && d.At.Before(due) {
					t.Errorf("%s: granted %v before RetryAfter", key, due.Sub(d.At))
				}
			}
		}
	})
}

// A call for several buckets corrects a row that is ahead of the clock, also if it denies: else it would deny
// until the clock has caught up.
func TestACallForManyDoesNotDenyByARowAhead(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	take(t, pool, s, "a", hours)
	age(t, pool, s, -time.Minute)
	for _, tokens := range []int64{1, 2} { // all or nothing, as much as there is
		request := pglimit.Request{Limiter: "test", Key: "a", Limit: hours, Tokens: tokens, Unit: 1}
		beside := request
		beside.Key = "b"
		d := takeAll(t, pool, s, request, beside)[0]
		if ahead := query[bool](t, pool, "select bool_or(at_ns > pglimit.clock_ns()) from pglimit.token_bucket"); d.Allowed || d.RetryAfter > hours.Token() || ahead {
			t.Errorf("%d tokens: %+v; a row is still ahead: %t", tokens, d, ahead)
		}
		age(t, pool, s, -time.Minute)
	}
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
	for readings := range 16 {
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
				d := takeAll(t, pool, s, pglimit.Request{Limiter: "test", Key: key, Limit: limit, Unit: 1})[0]
				if left := limit.Burst - owes - granted; granted == 0 || d.Remaining != left {
					t.Errorf("%s: %d are left, want %d", key, d.Remaining, left)
				}
			}
		}
	}
}

// A lease ends when its time has passed, however far the clock stepped back meanwhile:
// then it counts as spent, and flows back.
func TestALeaseEndsWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-time.Second, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			const ttl, token = 200 * time.Millisecond, 50 * time.Millisecond
			pool, s := newMigrated(t), strategies.TokenBucket{}
			execute(t, pool, steppingClock)
			limit := pglimit.Every(token).WithBurst(4)
			got, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 4, Share: 1, TTL: ttl})
			if err != nil || got.Tokens != 4 {
				t.Fatalf("%+v, %v", got, err)
			}
			leased := time.Now()
			step(t, pool, by)
			var d pglimit.Decision
			for d = take(t, pool, s, "k", limit); !d.Allowed; d = take(t, pool, s, "k", limit) {
				if d.RetryAfter > ttl+token {
					t.Fatalf("%+v: want a RetryAfter of at most %v", d, ttl+token)
				}
				if time.Since(leased) > time.Minute {
					t.Fatalf("still denied: %+v", d)
				}
			}
			// The step was seen at the first call after it: until then no time has passed.
			if passed := time.Since(leased); passed < ttl {
				t.Errorf("granted %v after the lease", passed)
			}
		})
	}
}

// A row that is ahead of the clock by less than a step is refilled from its last write on, not from its debt on.
func TestARowAheadIsRefilledFromItsWriteOn(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	limit := pglimit.PerSecond(1000).WithBurst(10)
	for _, tokens := range []int64{10, 17, 100} {
		execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
			select $1::bigint::text, 'test', pglimit.clock_ns() - 1000000000, $2, pglimit.clock_ns() + 9000000`, tokens, int64(limit.Token()))
		granted := query[int64](t, pool, "select (pglimit.token_bucket_take($1::bigint::text, 'test', $2, $3, $1, 1, null))[2]", tokens, int64(limit.Token()), int64(limit.Window()))
		if granted != 10 {
			t.Errorf("%d of %d granted, want 10", granted, tokens)
		}
	}
}

func takeAll(t *testing.T, db database, strategy strategies.Strategy, requests ...pglimit.Request) []pglimit.Decision {
	t.Helper()
	decisions, err := taken(db, func() ([]pglimit.Decision, error) { return strategy.Take(t.Context(), on(db), requests) })
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

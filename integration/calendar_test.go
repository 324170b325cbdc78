package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Where calendars are not as one thinks, Postgres and Go agree, whatever the session's time zone.
func TestWindowsEndWhenTheZoneSaysSo(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, test := range []struct{ limit, at, ends string }{
		{"1/day fixed", "2024-02-28T23:59:59.999999Z", "2024-02-29T00:00:00Z"},
		{"1/month fixed", "2024-12-31T23:59:59.999999Z", "2025-01-01T00:00:00Z"},
		{"1/year Europe/Berlin", "2026-12-31T22:59:59Z", "2026-12-31T23:00:00Z"},
		{"1/year Europe/Berlin", "2026-12-31T23:00:00Z", "2027-12-31T23:00:00Z"},
		{"1/second fixed", "2026-10-25T00:59:59.999999Z", "2026-10-25T01:00:00Z"},
		{"1/minute Asia/Kathmandu", "2026-10-25T00:59:00Z", "2026-10-25T01:00:00Z"},
		{"1/minute Europe/Berlin", "2026-10-25T00:59:59Z", "2026-10-25T01:00:00Z"},
		// Hours that come twice, or not at all, and days of 25 and 23 hours.
		{"1/hour Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z"},
		{"1/hour Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"},
		{"1/day Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"1/day Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		// A shift by half an hour.
		{"1/hour Australia/Lord_Howe", "2026-04-04T14:59:59Z", "2026-04-04T15:00:00Z"},
		{"1/hour Australia/Lord_Howe", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z"},
		{"1/hour Australia/Lord_Howe", "2026-10-03T15:29:59Z", "2026-10-03T15:30:00Z"},
		{"1/hour Australia/Lord_Howe", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z"},
		{"1/hour Asia/Kathmandu", "2026-10-03T15:30:00Z", "2026-10-03T16:15:00Z"},
		// A day without midnight, one with two, and one that did not exist.
		{"1/day America/Sao_Paulo", "2018-11-04T02:59:59Z", "2018-11-04T03:00:00Z"},
		{"1/day America/Sao_Paulo", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"1/day America/Havana", "2018-11-04T03:59:59Z", "2018-11-04T04:00:00Z"},
		{"1/day America/Havana", "2018-11-04T04:30:00Z", "2018-11-05T05:00:00Z"},
		{"1/day Asia/Colombo", "2006-04-14T17:59:59Z", "2006-04-14T18:00:00Z"}, // half an hour later it is midnight again
		{"1/day Asia/Colombo", "2006-04-14T18:00:00Z", "2006-04-15T18:30:00Z"},
		{"1/day Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-30T10:00:00Z"},
		// Days on which a month or a week begins.
		{"1/month from 31 fixed", "2026-02-27T12:00:00Z", "2026-02-28T00:00:00Z"},
		{"1/month from 31 fixed", "2026-02-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"1/month from 31 fixed", "2026-03-31T00:00:00Z", "2026-04-30T00:00:00Z"},
		{"1/month from 30 fixed", "2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z"},
		{"1/month from 15 Europe/Berlin", "2026-07-14T21:59:59Z", "2026-07-14T22:00:00Z"},
		{"1/month from 15 Europe/Berlin", "2026-12-20T00:00:00Z", "2027-01-14T23:00:00Z"},
		{"1/week fixed", "2026-11-29T23:59:59Z", "2026-11-30T00:00:00Z"},
		{"1/week from sunday fixed", "2026-11-28T23:59:59Z", "2026-11-29T00:00:00Z"},
		{"1/week from sunday fixed", "2026-11-29T00:00:00Z", "2026-12-06T00:00:00Z"},
		{"1/week from thursday fixed", "2026-11-26T00:00:00Z", "2026-12-03T00:00:00Z"},
	} {
		limit, err := pglimit.ParseLimit(test.limit)
		must(t, err)
		at, err := time.Parse(time.RFC3339, test.at)
		must(t, err)
		if ends, err := limit.WindowEnd(at); ends.UTC().Format(time.RFC3339) != test.ends || err != nil {
			t.Errorf("Go: %+v: %v, %v", test, ends, err)
		}
		for _, zone := range []string{"UTC", "America/New_York", "Pacific/Kiritimati"} {
			tx := begin(t, pool)
			execute(t, tx, "select set_config('timezone', $1, true)", zone)
			ends := query[time.Time](t, tx, "select pglimit.time_of(pglimit.window_end_ns($1, pglimit.ns_of($2)))", limit.Calendar, at)
			if ends.UTC().Format(time.RFC3339) != test.ends {
				t.Errorf("Postgres in %s: %+v: %v", zone, test, ends)
			}
			_ = tx.Rollback(context.Background())
		}
	}
}

// 64 callers on two pools, while one window after another ends: in none is one token too many, and who
// was denied, was denied in a window that had granted all. The windows are of 50 ms.
func TestCalendarWindowsAreExact(t *testing.T) {
	t.Parallel()
	const window, tokens, windows = 50 * time.Millisecond, 20, 12
	db := newMigrated(t)
	execute(t, db, `create or replace function pglimit.window_end_ns(calendar text, at_ns bigint) returns bigint
		language sql stable strict return (at_ns / 50000000 + 1) * 50000000`)
	limit := pglimit.PerDay(tokens).Fixed()
	var mu sync.Mutex
	granted, denied := make(map[[2]int64]int64), make(map[[2]int64]int64) // by key and window
	full := 0                                                             // windows that are used up
	var seen atomic.Int64
	var callers sync.WaitGroup
	patience := soon(t, time.Minute)
	for i := range 2 {
		limiter := newLimiter(t, newPool(t, databaseURL(db), 8), strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: limit, Timeout: pglimit.NoTimeout, Memory: pglimit.Memory{Off: i == 0}})
		for j := range 32 {
			callers.Go(func() {
				first := int64(0)
				for n := 0; ; n++ {
					requests := []pglimit.Request{{Key: "one", Tokens: 1}}
					if j%4 == 0 { // of two keys, all or nothing
						requests = append(requests, pglimit.Request{Key: "two", Tokens: 1})
					}
					group, err := limiter.DoAll(t.Context(), requests...)
					if errors.Is(err, pglimit.ErrNothingTaken) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for k, d := range group.Decisions {
						of := [2]int64{int64(k), d.At.UnixNano() / int64(window)}
						if granted[of] += d.Granted; d.Granted > 0 && granted[of] == tokens {
							full++
						}
						if !d.Allowed {
							denied[of]++
							if d.Source == pglimit.FromDatabase && d.RetryAfter != time.Unix(0, (of[1]+1)*int64(window)).Sub(d.At) {
								t.Errorf("the window ends in %v: %+v", time.Unix(0, (of[1]+1)*int64(window)).Sub(d.At), d)
							}
						}
					}
					enough := full >= windows/2 || patience.Err() != nil // a busy machine lets windows pass
					mu.Unlock()
					now := group.Decisions[0].At.UnixNano() / int64(window)
					if first == 0 {
						first = now
					}
					if now >= first+windows && enough {
						seen.Add(1)
						return
					}
				}
			})
		}
	}
	callers.Wait()
	for of, n := range granted {
		switch {
		case n > tokens:
			t.Errorf("%v: %d tokens of %d", of, n, tokens)
		case n < tokens && denied[of] > 0 && of[0] == 0:
			t.Errorf("%v: %d denials, and %d tokens of %d granted", of, denied[of], n, tokens)
		}
	}
	if full < windows/2 || seen.Load() != 64 {
		t.Errorf("%d windows were used up, by %d callers", full, seen.Load())
	}
}

// Every door knows windows of the calendar, and says what cannot be done with them.
func TestCalendarWindowsAtEveryDoor(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerYear(10).In("Europe/Berlin")
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: limit, Leases: pglimit.Leases{On: true}})
	defer func() { must(t, limiter.Close(context.Background())) }()
	d, err := limiter.AllowN(t.Context(), "k", 3)
	must(t, err)
	if ends, err := limit.WindowEnd(d.At); !d.Allowed || d.Remaining != 7 || d.ResetAfter != ends.Sub(d.At) || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if left := query[int64](t, pool, "select remaining from pglimit.allow('api', 'k', $1)", limit.String()); left != 6 {
		t.Errorf("SQL: %d left", left)
	}
	must(t, limiter.Refund(t.Context(), d, 3))
	peeked, err := limiter.Peek(t.Context(), "k")
	must(t, err)
	if row := query[int64](t, pool, "select tokens_owed from pglimit.buckets where full_at - $1 = $2 and seconds_per_token is null", peeked.At, peeked.ResetAfter); peeked.Remaining != 9 || row != 1 {
		t.Errorf("%+v, and %d in the view", peeked, row)
	}
	if settled, err := limiter.Settle(t.Context(), oneGrant(t, limiter), 20); settled.Granted != 9 || settled.Remaining != 0 || err == nil {
		t.Errorf("settled for as much as there is: %+v, %v", settled, err)
	}
	if d, err := limiter.Allow(t.Context(), "k"); d.Allowed || d.RetryAfter != d.ResetAfter || d.RetryAfter < time.Second && d.RetryAfter > 0 || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := limiter.Wait(t.Context(), "k"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("waits: %v", err)
	}
	if _, err := limiter.Reserve(t.Context(), "k"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("reserves: %v", err)
	}
	var refused *pglimit.LimitError
	for _, strategy := range strategies.All()[1:] {
		if _, err := pglimit.New(pool, strategy, pglimit.Config{Name: "api", Limit: limit.WithBurst(1)}); !errors.As(err, &refused) || refused.Field != "Calendar" {
			t.Errorf("%s: %v", strategy.Name(), err)
		}
	}
	for _, call := range []string{"set_limit('api', '10/month Europe/Nowhere', note => 'test')", "peek('new', 'k', '10/month from 3 Europe/Nowhere')"} {
		if _, err := pool.Exec(t.Context(), "select pglimit."+call); err == nil || !strings.Contains(err.Error(), `"Europe/Nowhere"`) {
			t.Errorf("%s, in a zone that is none: %v", call, err)
		}
	}
	execute(t, pool, "select pglimit.set_limit('api', '12/year Europe/Berlin', note => 'test')")
	if left := query[int64](t, pool, "select remaining from pglimit.allow('api', 'k')"); left != 1 {
		t.Errorf("under a rule: %d left", left)
	}
}

// A time zone with a mistake in its name is no outage, in which FailOpen would let everybody pass. It is its own
// request's error only.
func TestAnUnknownTimeZoneIsNoOutage(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	good := pglimit.PerYear(10).In("Europe/Berlin")
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: good.In("Europe/Berln"), OnError: pglimit.FailOpen})
	defer func() { must(t, limiter.Close(context.Background())) }()
	refused := func(what string, err error) {
		t.Helper()
		var limit *pglimit.LimitError
		if !errors.As(err, &limit) || limit.Field != "Calendar" || limit.Limit != good.In("Europe/Berln") || !strings.Contains(err.Error(), `"Europe/Berln"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := limiter.Allow(t.Context(), "k")
	refused("one", err)
	_, err = limiter.Peek(t.Context(), "k")
	refused("a peek", err)
	_, err = limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, ID: "id"})
	refused("with an ID", err)
	_, err = limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1, Limit: good}, pglimit.Request{Key: "b", Tokens: 1})
	refused("a group", err)
	decisions, err := limiter.DoEach(t.Context(),
		pglimit.Request{Key: "a", Tokens: 1, Limit: good}, pglimit.Request{Key: "b", Tokens: 1}, pglimit.Request{Key: "c", Tokens: 1, Limit: pglimit.PerHour(5)})
	refused("one of several", err)
	if len(decisions) != 3 || decisions[0].Remaining != 9 || decisions[1].Allowed || decisions[2].Remaining != 4 {
		t.Errorf("%+v", decisions)
	}
	for _, driver := range sqlDrivers {
		other, err := pglimit.NewSQL(openSQL(t, driver.open, databaseURL(pool), 2), strategies.TokenBucket{}, limiter.Config())
		must(t, err)
		_, err = other.Allow(t.Context(), "k")
		refused(driver.name, err)
		must(t, other.Close(t.Context()))
	}
}

// oneGrant is a grant of one token.
func oneGrant(t *testing.T, limiter *pglimit.Limiter) pglimit.Decision {
	t.Helper()
	d, err := limiter.Allow(t.Context(), "k")
	must(t, err)
	return d
}

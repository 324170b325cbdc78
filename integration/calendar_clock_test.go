package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// sharedClock stands where windowClock puts it, in all sessions.
const sharedClock = `create sequence public.clock;
	create or replace function pglimit.clock_ns() returns bigint language plpgsql volatile as 'begin return (select last_value from public.clock); end'`

func windowClock(t *testing.T, db database, at string) {
	t.Helper()
	execute(t, db, "select setval('public.clock', pglimit.ns_of($1::text::timestamptz))", at)
}

func allowText(t *testing.T, db database, key, limit string, n int64) bool {
	t.Helper()
	return query[bool](t, db, "select allowed from pglimit.allow('test', $1, $2, $3)", key, limit, n)
}

// The end of a window does not move with the clock: whoever asks while the clock has stepped back, a window that is used
// up stays so until it ends. Only after a step by more than a day is its end the caller's.
func TestAWindowEndsWhenItDoesAfterAStepBack(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	const day = "10/day fixed"
	for key, asks := range map[string]func(key string) bool{
		"by the same limit": func(key string) bool { return allowText(t, db, key, day, 1) },
		"by another window": func(key string) bool { return allowText(t, db, key, "3/hour fixed", 1) },
		"by a bucket":       func(key string) bool { return allowText(t, db, key, "5/500h", 1) },
		"by a lease": func(key string) bool {
			return query[bool](t, db, "select (pglimit.token_bucket_lease($1, 'test', 360000000000000, 1800000000000000, 1, 1, 60000000000, 0, 0, 0))[2] > 0", key)
		},
		"by many": func(key string) bool {
			return query[bool](t, db, `select grants[1] > 0 from pglimit.token_bucket_take_many(array[$1, 'other ' || $1], '{test}', '{1}', '{10}', '{1}',
				'{1,2}', '{1,1}', '{1,1}', null, '{2}', false, '100ms', '{"day UTC"}')`, key)
		},
	} {
		windowClock(t, db, "2026-11-20 12:00:00+00")
		if !allowText(t, db, key, day, 10) {
			t.Fatal(key)
		}
		for _, at := range []string{"2026-11-20 11:59:59.98+00", "2026-11-20 09:00:00+00", "2026-11-20 21:30:00+00", "2026-11-20 23:59:59.99+00"} {
			windowClock(t, db, at)
			if asks(key) || allowText(t, db, key, day, 1) {
				t.Errorf("%s: granted at %s", key, at)
			}
		}
		windowClock(t, db, "2026-11-21 00:00:00+00")
		if !allowText(t, db, key, day, 10) {
			t.Errorf("%s: denied on the next day", key)
		}
	}
	for _, used := range []int64{9, 10} { // the row is written by a grant, or by a denial
		for name, limit := range map[string]string{"day": day, "year": "10/year"} {
			key := fmt.Sprint("years ahead, ", name, used)
			windowClock(t, db, "2031-06-05 18:00:00+00")
			allowText(t, db, key, limit, used)
			windowClock(t, db, "2026-11-20 12:00:00+00")
			end := map[string]string{"day": "2026-11-21", "year": "2027-01-01"}[name]
			for road, told := range map[string]string{ // before anything is written
				"peek": "select pglimit.ns_of(at + reset_after) from pglimit.peek('test', $1, $2)",
				"take": "select (pglimit.token_bucket_take($1, 'test', 1, 10, 0, 1, null, split_part($2, '/', 2) || case $2 when '10/year' then ' UTC' else '' end))[7]",
			} {
				if ns := query[int64](t, db, told, key, map[string]string{"day": "10/day UTC", "year": "10/year"}[name]); time.Unix(0, ns).UTC().Format(time.DateOnly) != end {
					t.Errorf("%s: %s tells of a window until %v", key, road, time.Unix(0, ns).UTC())
				}
			}
			if allowText(t, db, key, limit, 1) != (used == 9) || allowText(t, db, key, limit, 1) {
				t.Errorf("%s: what was used stays used", key)
			}
			windowClock(t, db, "2026-11-20 23:59:59.9+00")
			if allowText(t, db, key, limit, 1) {
				t.Errorf("%s: granted within the window", key)
			}
			if retry := query[time.Time](t, db, "select at + retry_after from pglimit.peek('test', $1, $2)", key, limit); retry.UTC().Format(time.DateOnly) != end {
				t.Errorf("%s: told to come back at %v", key, retry)
			}
			windowClock(t, db, end+" 00:00:00+00")
			if !allowText(t, db, key, limit, 10) {
				t.Errorf("%s: locked out until a year to come", key)
			}
		}
		key := fmt.Sprint("years ahead, by a bucket", used)
		windowClock(t, db, "2031-06-05 18:00:00+00")
		allowText(t, db, key, day, used)
		windowClock(t, db, "2026-11-20 12:00:00+00")
		if allowText(t, db, key, "10/1d", 1) != (used == 9) || allowText(t, db, key, "10/1d", 1) {
			t.Errorf("%s: what was used stays used", key)
		}
		windowClock(t, db, "2026-11-21 12:00:00+00")
		if !allowText(t, db, key, "10/1d", 10) {
			t.Errorf("%s: locked out until a year to come", key)
		}
	}
}

// Who waits for a row across the end of a window, and then gets it as it was because the other call is undone, is granted
// tokens of the window that has begun.
func TestAGrantThatWaitedAcrossTheEndOfAWindow(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	const day = "10/day fixed"
	for key, used := range map[string]int64{"new": 0, "used": 1} {
		windowClock(t, db, "2026-11-20 12:00:00+00")
		if used > 0 {
			allowText(t, db, key, day, used)
		}
		windowClock(t, db, "2026-11-20 23:59:59+00")
		first := begin(t, db)
		allowText(t, first, key, day, 1)
		second := make(chan bool)
		go func() { second <- allowText(t, db, key, day, 9) }()
		waiting(t, db, 1)
		windowClock(t, db, "2026-11-21 08:00:00+00")
		must(t, first.Rollback(t.Context()))
		if !<-second || allowText(t, db, key, day, 2) || !allowText(t, db, key, day, 1) {
			t.Errorf("%s: nine were granted on the 21st, and one is left", key)
		}
	}
}

// A call of many that waited across the end of a window, and then gets none of the row, is decided as of the next one.
func TestACallOfManyThatWaitedAcrossTheEndOfAWindow(t *testing.T) {
	t.Parallel()
	db := newMigrated(t)
	execute(t, db, sharedClock)
	const day = "10/day fixed"
	windowClock(t, db, "2026-11-20 12:00:00+00")
	allowText(t, db, "a", day, 5)
	first := begin(t, db)
	allowText(t, first, "a", day, 5)
	granted := make(chan []int64)
	go func() {
		granted <- query[[]int64](t, db, `select array(select r[n][3] from generate_series(1, cardinality(r) / 8) n order by r[n][1])
			from (select rest from pglimit.token_bucket_take_many('{a,new}', '{test}', '{1}', '{10}', '{1}', null, null, null, null, null, false, '1min', '{day UTC}')) m (r)`)
	}()
	waiting(t, db, 1)
	windowClock(t, db, "2026-11-21 08:00:00+00")
	must(t, first.Commit(t.Context()))
	if got := <-granted; !slices.Equal(got, []int64{1, 1}) {
		t.Errorf("granted %v", got)
	}
	if rows := query[int64](t, db, "select count(*) from pglimit.token_bucket where until_ns = pglimit.ns_of('2026-11-22 00:00+00') and full_ns = until_ns + 1"); rows != 2 {
		t.Errorf("%d rows have a token of the 21st", rows)
	}
}

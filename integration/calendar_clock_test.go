package integration

import (
	"slices"
	"testing"
)

func allowText(t *testing.T, db database, key, limit string, n int64) bool {
	t.Helper()
	return query[bool](t, db, "select allowed from pglimit.allow('test', $1, $2, $3)", key, limit, n)
}

// Who waits for a row across the end of a window, and then gets it as it was because the other call is undone, is
// granted tokens of the window that has begun.
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

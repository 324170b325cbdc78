package integration

import "testing"

// A take waits for a row, and meanwhile the clock steps back and the other call corrects the row and takes the rest. The
// time that was read before the wait would find all refilled.
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

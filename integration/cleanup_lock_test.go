package integration

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cleanup"
)

// The ledger is by the database's clock, so time passes here by moving the row.
func TestCleanupLedger(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	newLocker := func(interval time.Duration) *cleanup.Locker {
		locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: interval})
		must(t, err)
		return locker
	}
	hourly, minutely := newLocker(time.Hour), newLocker(time.Minute)
	passes := func(d time.Duration) {
		execute(t, pool, "update pglimit.schedule set ran_at = ran_at - $1::interval, due_at = due_at - $1::interval", d)
	}
	runs := func(when string, locker *cleanup.Locker, want error) {
		t.Helper()
		lock, err := locker.Lock(t.Context(), "job")
		if !errors.Is(err, want) || err == nil && want != nil {
			t.Errorf("%s: got %v, want %v", when, err, want)
		}
		if err == nil {
			if err := lock.Unlock(t.Context()); err != nil {
				t.Errorf("%s: Unlock: %v", when, err)
			}
		}
	}
	runs("the first time", hourly, nil)
	for range 2 { // the first claim inserts the row, the next ones update it
		runs("another instance, whose clock is a little behind", hourly, cleanup.ErrNotDue)
		passes(53 * time.Minute)
		runs("another, whose clock is far behind", hourly, cleanup.ErrNotDue)
		passes(2 * time.Minute)
		runs("the next time, a little early", hourly, nil)
		runs("and only once", hourly, cleanup.ErrNotDue)
	}
	passes(-24 * time.Hour)
	runs("after the database's clock stepped back", hourly, nil)
	runs("and only once", hourly, cleanup.ErrNotDue)
	runs("after the interval was shortened", minutely, nil)
	runs("and only once", minutely, cleanup.ErrNotDue)

	// Neither written nor locked: the lock of an upsert would show in xmax.
	row := func() (state string) {
		must(t, pool.QueryRow(t.Context(), "select concat_ws(' ', ctid, xmin, xmax) from pglimit.schedule").Scan(&state))
		return state
	}
	before := row()
	runs("a run that is not due", minutely, cleanup.ErrNotDue)
	if after := row(); after != before {
		t.Errorf("asking for a run that is not due left a trace: the row was %s, is %s", before, after)
	}
}

// Of two who claim a run at the same time the second is told that it is not due, also where
// transactions are serializable.
func TestCleanupTwoClaimARun(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	locker, err := cleanup.NewLocker(newPool(t, with(databaseURL(pool), "default_transaction_isolation", "serializable"), 2), cleanup.LockerConfig{Interval: time.Hour})
	must(t, err)
	first := begin(t, pool)
	execute(t, first, "insert into pglimit.schedule values ('job', now(), now() + interval '54 minutes')")
	whileBlocked(t, pool, func() { _, err = locker.Lock(t.Context(), "job") }, func() { commit(t, first) })
	if !errors.Is(err, cleanup.ErrNotDue) {
		t.Errorf("got %v, want ErrNotDue", err)
	}
}

// What a run holds for minutes must cost the others nothing: no connection, no transaction. A pool of one connection
// will do.
func TestCleanupLockHoldsBackNobody(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	pool := newPool(t, with(databaseURL(admin), "default_transaction_isolation", "serializable"), 1)
	locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{})
	must(t, err)
	lock, err := locker.Lock(t.Context(), "job")
	must(t, err)
	eventually(t, admin, "select not exists (select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null and backend_type = 'client backend')")
	must(t, lock.Unlock(t.Context()))
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out after Unlock", n)
	}
	cleanupNoLocks(t, admin)
}

// Nothing of ours waits for, or gives way to, a lock that any login may take.
func TestNoLockIsAnybodys(t *testing.T) {
	t.Parallel()
	must(t, filepath.WalkDir("..", func(path string, file fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".go", ".sql"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if regexp.MustCompile(`pg_(try_)?advisory_`).Match(text) {
			t.Errorf("%s takes an advisory lock: lock a row, or a table", path)
		}
		return err
	}))
}

func TestCleanupLostLockIsNoticed(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	lost := make(chan error, 1)
	locker, err := cleanup.NewLocker(cleanupPool(t, pool), cleanup.LockerConfig{
		Interval: time.Millisecond,
		TTL:      400 * time.Millisecond,
		OnLost:   func(_ string, err error) { lost <- err },
	})
	must(t, err)
	ctx, shutdown := context.WithCancel(t.Context())
	lock, err := locker.Lock(ctx, "job")
	must(t, err)
	shutdown() // as gocron's, while the job still runs
	execute(t, pool, "delete from pglimit.permits")
	if err := cleanupWithin(t, "the loss is noticed", lost); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("OnLost: got %v, want ErrLost", err)
	}
	if err := lock.Unlock(t.Context()); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("Unlock: got %v, want ErrLost", err)
	}
	if lock, err = locker.Lock(t.Context(), "job"); err != nil {
		t.Fatalf("the next run: %v", err)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

package integration

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
)

// An instance whose machine vanishes leaves a connection that nobody closes. A
// stopped process looks the same from the server.
func TestCleanupLockOfASilentHolderGoes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	child, say := cleanupChild(t, pool, "hold")
	cleanupHears(t, say, "holding")
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Waits until the lock is free.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := pool.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended('pglimit child', 0))"); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

// The ledger is by the database's clock, so time passes here by moving the row.
func TestCleanupLedger(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	newLocker := func(interval time.Duration) *cleanup.Locker {
		locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: interval})
		if err != nil {
			t.Fatal(err)
		}
		return locker
	}
	hourly, minutely := newLocker(time.Hour), newLocker(time.Minute)
	passes := func(d time.Duration) {
		cleanupExec(t, pool, "update pglimit.schedule set ran_at = ran_at - $1::interval, due_at = due_at - $1::interval", d)
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
		if err := pool.QueryRow(t.Context(), "select concat_ws(' ', ctid, xmin, xmax) from pglimit.schedule").Scan(&state); err != nil {
			t.Fatal(err)
		}
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
	locker, err := cleanup.NewLocker(newPool(t, withParameter(databaseURL(pool), "default_transaction_isolation", "serializable"), 2), cleanup.LockerConfig{Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	first := begin(t, pool)
	execute(t, first, "insert into pglimit.schedule values ('job', now(), now() + interval '54 minutes')")
	whileBlocked(t, pool, func() { _, err = locker.Lock(t.Context(), "job") }, func() { commit(t, first) })
	if !errors.Is(err, cleanup.ErrNotDue) {
		t.Errorf("got %v, want ErrNotDue", err)
	}
}

func TestCleanupLockerIsAGocronLocker(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	ran := make(chan string, 100)
	for range 3 {
		locker, err := cleanup.NewLocker(cleanupPool(t, pool), cleanup.LockerConfig{Interval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		asked := cleanupAsked{locker, make(chan error, 100)}
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(asked))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = scheduler.Shutdown() })
		for _, name := range []string{"a", "b"} {
			_, err := scheduler.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() { ran <- name }), gocron.WithName(name))
			if err != nil {
				t.Fatal(err)
			}
		}
		scheduler.Start()
		for range 6 {
			if err := cleanupWithin(t, "gocron asks", asked.answers); err != nil && !errors.Is(err, cleanup.ErrNotDue) {
				t.Errorf("got %v, want no error or ErrNotDue", err)
			}
		}
		if err := scheduler.Shutdown(); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
	close(ran)
	var names []string
	for name := range ran {
		names = append(names, name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got runs of %v, want one of each job", names)
	}
	cleanupNoLocks(t, pool)
}

// cleanupAsked is a Locker whose answers can be heard.
type cleanupAsked struct {
	gocron.Locker
	answers chan error
}

func (a cleanupAsked) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lock, err := a.Locker.Lock(ctx, job)
	a.answers <- err
	return lock, err
}

// What a run holds for minutes must cost the others nothing, whatever the defaults
// of the database are.
func TestCleanupLockHoldsBackNobody(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	config := pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "2s" // a busy machine may take some time from its beginning to the lock
	config.ConnConfig.RuntimeParams["application_name"] = "holder"
	if cleanupInt(t, pool, "select current_setting('server_version_num')::bigint") >= 170000 {
		config.ConnConfig.RuntimeParams["transaction_timeout"] = "2s"
	}
	holder, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(holder.Close)
	locker, err := cleanup.NewLocker(holder, cleanup.LockerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if n := cleanupInt(t, pool, `select count(*) from pg_stat_activity
		where application_name = 'holder' and state = 'idle in transaction' and backend_xid is null and backend_xmin is null`); n != 1 {
		t.Errorf("got %d transactions that hold no snapshot and have no id, want the lock's", n)
	}
	cleanupExec(t, pool, "select pg_sleep(2.5)") // longer than the timeouts above: the lock has its own
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	if n := holder.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out after Unlock", n)
	}
	cleanupNoLocks(t, pool)
}

func TestCleanupLostLockIsNoticed(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	lost := make(chan error, 1)
	locker, err := cleanup.NewLocker(cleanupPool(t, pool), cleanup.LockerConfig{
		Interval:  time.Millisecond,
		Heartbeat: 500 * time.Millisecond, // four of them are the lock's own timeout, which must not end it on a busy machine
		OnLost:    func(_ string, err error) { lost <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := locker.Lock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	cleanupExec(t, pool, "select pg_terminate_backend(pid) from pg_locks where "+cleanupAdvisory)
	if err := cleanupWithin(t, "the loss is noticed", lost); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("OnLost: got %v, want ErrLost", err)
	}
	if err := lock.Unlock(t.Context()); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("Unlock: got %v, want ErrLost", err)
	}
	// The session has said that it ends, and gives up its lock a moment later.
	eventually(t, pool, "select not exists (select from pg_locks where "+cleanupAdvisory+")")
	if lock, err = locker.Lock(t.Context(), "job"); err != nil {
		t.Fatalf("the next run: %v", err)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Errorf("Unlock: %v", err)
	}
}

package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
)

// heldTable is a pool on a migrated database in which a transaction that has read
// token_bucket stays open until end is called.
func heldTable(t *testing.T) (pool *pgxpool.Pool, end func()) {
	t.Helper()
	pool = newMigrated(t)
	holder, err := migrationPool(t, databaseURL(pool), setting("application_name", "a long report")).Begin(t.Context())
	must(t, err)
	end = func() { _ = holder.Rollback(context.Background()) }
	t.Cleanup(end)
	execute(t, holder, `select from pglimit.token_bucket`)
	return pool, end
}

// retries sends what a migration logs when it is tried again.
type retries struct {
	slog.Handler
	heard chan string
}

func (r retries) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (r retries) Handle(_ context.Context, record slog.Record) error {
	text := record.Message
	record.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	r.heard <- text
	return nil
}

// While somebody's long transaction keeps a migration from a table, those who only
// read it wait for no longer than the migration does.
func TestAMigrationThatWaitsForALockLetsOthersThrough(t *testing.T) {
	t.Parallel()
	pool, end := heldTable(t)
	const lockTimeout = time.Second

	heard := make(chan string, 100)
	result := make(chan error, 1)
	go func() {
		result <- migrations.DownTo(t.Context(), pool, 0, migrations.WithLockTimeout(lockTimeout),
			migrations.WithLogger(slog.New(retries{slog.DiscardHandler, heard})))
	}()
	// One reads the table that is held, one a table that a migration undone before it drops.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	worst := make(chan time.Duration, 2)
	tables := []string{"token_bucket", "exclusion_range"}
	reads := map[string]chan struct{}{} // as soon as one ends that somebody waits for
	for _, table := range tables {
		read := make(chan struct{})
		reads[table] = read
		go func() {
			var longest time.Duration
			for ctx.Err() == nil {
				begin := time.Now()
				_, err := pool.Exec(ctx, `select from pglimit.`+table)
				longest = max(longest, time.Since(begin))
				if err != nil && ctx.Err() == nil {
					t.Errorf("reading %s: %v", table, err)
					break
				}
				select {
				case read <- struct{}{}:
				default:
				}
			}
			worst <- longest
		}()
	}
	patience, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	for range 2 {
		select {
		case text := <-heard:
			if !strings.Contains(text, "pglimit.token_bucket") || !strings.Contains(text, "a long report") {
				t.Errorf("logged %s", text)
			}
		case <-patience.Done():
			t.Fatal("the migration waits, and is not tried again")
		}
		for _, table := range tables {
			select {
			case <-reads[table]:
			case <-patience.Done():
				t.Fatalf("in the pause nobody can read %s", table)
			}
		}
	}
	cancel()
	for range 2 {
		// It is hardly more than lockTimeout, but the machine may be busy; behind a
		// migration that does not let others through it is as long as the lock is held, and above nobody reads then.
		d := <-worst
		t.Logf("the longest that a reader waited: %v", d)
		if d > 10*lockTimeout {
			t.Errorf("a reader waited %v, behind a migration that waits for a lock %v at most", d, lockTimeout)
		}
	}
	end()
	must(t, <-result)
	wantApplied(t, pool, "")
}

// Else there would always be one of them that waits, with others behind it.
func TestOfManyMigrationsOneAtATimeWaitsForALock(t *testing.T) {
	t.Parallel()
	pool, end := heldTable(t)
	heard := []chan string{make(chan string, 100), make(chan string, 100)}
	result := make(chan error, len(heard))
	for _, channel := range heard {
		go func() {
			result <- migrations.DownTo(t.Context(), migrationPool(t, databaseURL(pool)), 0, migrations.WithLockTimeout(10*time.Millisecond),
				migrations.WithLogger(slog.New(retries{slog.DiscardHandler, channel})))
		}()
	}
	select {
	case <-heard[0]:
	case text := <-heard[1]:
		if strings.Contains(text, "is tried again") {
			slices.Reverse(heard)
		}
	}
	for range 5 {
		<-heard[0]
	}
	for range len(heard[1]) {
		if text := <-heard[1]; !strings.Contains(text, "waits for another migration") {
			t.Errorf("both are tried again by turns: %s", text)
		}
	}
	end()
	must(t, <-result)
	must(t, <-result)
	wantApplied(t, pool, "")
}

func TestAMigrationGivesUpWithItsContextAndNamesTheHolder(t *testing.T) {
	t.Parallel()
	pool, _ := heldTable(t)
	before := catalogOf(t, pool)
	for when, waits := range map[string]string{
		"in the pause": `select true`,
		"while it waits, not for the first time": `select count(*) > 0 from pg_locks
			where database = (select oid from pg_database where datname = current_database()) and locktype = 'relation' and not granted`,
	} {
		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan string, 100)
		result := make(chan error, 1)
		go func() {
			result <- migrations.DownTo(ctx, pool, 0, migrations.WithLockTimeout(500*time.Millisecond),
				migrations.WithLogger(slog.New(retries{slog.DiscardHandler, heard})))
		}()
		<-heard
		eventually(t, pool, waits)
		cancel()
		err := <-result
		t.Log(when, err)
		wantCode(t, err, "55P03")
		wantLine(t, err, "cannot undo migration tables", "'a long report'", "holds locks on pglimit.token_bucket", "gave up in try")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: not the end of the context: %v", when, err)
		}
	}
	diff(t, "afterwards, against before", before, catalogOf(t, pool))
}

// A migration that Postgres ends because of a deadlock is tried again, also where it may wait for any time.
func TestAMigrationThatWasEndedInADeadlockIsTriedAgain(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	tables := tablesInOrder(t, pool)
	first, second, third := tables[0], tables[1], tables[2]
	between, other := begin(t, pool), begin(t, pool)
	execute(t, other, "set local deadlock_timeout = '1min'") // the migration finds it first
	execute(t, other, "lock table "+third+" in share mode")
	execute(t, between, "lock table "+second+" in share mode")

	heard := make(chan string, 100)
	result, others := make(chan error, 1), make(chan error, 1)
	go func() {
		result <- migrations.DownTo(t.Context(), migrationPool(t, databaseURL(pool), setting("deadlock_timeout", "10")), 0,
			migrations.WithLockTimeout(0), migrations.WithLogger(slog.New(retries{slog.DiscardHandler, heard})))
	}()
	const waiting = `select count(*) = %d from pg_locks
		where database = (select oid from pg_database where datname = current_database()) and locktype = 'relation' and not granted`
	eventually(t, pool, fmt.Sprintf(waiting, 1)) // for the second; it has the first
	go func() {
		_, err := other.Exec(t.Context(), "lock table "+first+" in share mode")
		others <- err
	}()
	eventually(t, pool, fmt.Sprintf(waiting, 2))
	commit(t, between)
	select {
	case text := <-heard:
		if !strings.Contains(text, "40P01") {
			t.Errorf("logged %s", text)
		}
	case err := <-result:
		t.Fatalf("it is not tried again: %v", err)
	}
	must(t, <-others)
	commit(t, other)
	must(t, <-result)
	wantApplied(t, pool, "")
}

// Down undoes what was applied last, which may be exclusion_range although its version is lower.
func TestDownUndoesWhatWasAppliedLast(t *testing.T) {
	t.Parallel()
	pool := migrationPool(t, newDatabase(t))
	must(t, migrations.Up(t.Context(), pool, migrations.WithoutExclusionRange()))
	must(t, migrations.Up(t.Context(), pool))
	for _, left := range []string{"1 3", "1", ""} {
		must(t, migrations.Down(t.Context(), pool))
		wantApplied(t, pool, left)
	}
}

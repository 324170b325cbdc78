package integration

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// An application with a *sql.DB migrates, decides and sweeps with that, and needs no other pool. Its
// connections come back as they were.
func TestSQLDBIsEnough(t *testing.T) {
	t.Parallel()
	for _, driver := range sqlDrivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			sqlDBIsEnough(t, openSQL(t, driver.open, with(newDatabase(t), "search_path", "nowhere"), 1))

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := migrations.Up(ctx, openSQL(t, driver.open, "postgres://127.0.0.1:1/none", 1), migrations.WaitForServer(),
				migrations.WithLogger(slog.New(warned{slog.DiscardHandler, cancel})))
			if wantLine(t, err, "cannot connect to the database", "gave up in try 1"); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// warned calls a function at a warning, while that is logged.
type warned struct {
	slog.Handler
	call func()
}

func (w warned) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w warned) Handle(context.Context, slog.Record) error {
	w.call()
	return nil
}

func sqlDBIsEnough(t *testing.T, db *sql.DB) {
	t.Helper()
	must(t, migrations.Up(t.Context(), db))
	status, err := migrations.Status(t.Context(), db)
	must(t, err)
	for _, m := range status {
		if !m.Applied {
			t.Errorf("%+v", m)
		}
	}
	must(t, migrations.SetStorage(t.Context(), db, migrations.Unlogged))
	tables, err := migrations.ReadStorage(t.Context(), db)
	must(t, err)
	if tables[0].Storage != migrations.Unlogged {
		t.Errorf("%+v", tables)
	}
	if d, err := newSQLLimiter(t, db, pglimit.Config{Name: "test", Limit: hours}).Allow(t.Context(), "k"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}

	_, err = db.ExecContext(t.Context(), `update pglimit.token_bucket set full_ns = 1000, at_ns = 1`)
	must(t, err)
	cleaner, err := cleanup.New(db, strategies.All(), cleanup.Config{})
	must(t, err)
	report, err := cleaner.RunOnce(t.Context())
	if err != nil || report.Removed != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	ran := make(chan cleanup.Report, 100)
	cleaner, err = cleanup.New(db, strategies.All(), cleanup.Config{OnRun: func(r cleanup.Report) { ran <- r }})
	must(t, err)
	must(t, cleaner.Start(t.Context()))
	if report := cleanupWithin(t, "a run", ran); report.Err != nil {
		t.Error(report.Err)
	}
	cleanupStop(t, cleaner)

	// A loss of the lock is noticed.
	locker, err := cleanup.NewLocker(db, cleanup.LockerConfig{})
	must(t, err)
	lock, err := locker.Lock(t.Context(), "job")
	must(t, err)
	_, err = db.ExecContext(t.Context(), `delete from pglimit.permits`)
	must(t, err)
	if err := lock.Unlock(t.Context()); !errors.Is(err, cleanup.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}

	if n := testutil.CollectAndCount(promlimit.NewDatabase(db, nil), "pglimit_database_rows"); n < 5 {
		t.Errorf("the numbers of %d tables", n)
	}

	// One that is held up is cancelled, and leaves no lock.
	blocker, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = blocker.ExecContext(t.Context(), `lock table pglimit.upsert`)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := migrations.DownTo(ctx, db, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("held up, it returned %v", err)
	}
	must(t, blocker.Rollback())
	must(t, migrations.DownTo(t.Context(), db, 0))

	// What Postgres refuses is told as with pgx.
	_, err = db.ExecContext(t.Context(), `create schema pglimit create table upsert ()`)
	must(t, err)
	wantLine(t, migrations.Up(t.Context(), db), "cannot apply migration tables", "migrated with another tool")
	var path string
	must(t, db.QueryRowContext(t.Context(), "show search_path").Scan(&path))
	if n := db.Stats().InUse; path != "nowhere" || n != 0 {
		t.Errorf("search_path %s, %d connections in use", path, n)
	}
}

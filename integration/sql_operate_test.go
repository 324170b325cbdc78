package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// An application with a *sql.DB migrates, decides and sweeps with that, and needs no other pool. Its
// connections come back as they were.
func TestSQLDBIsEnough(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := openSQL(t, sqlDrivers[0].open, with(url, "search_path", "nowhere"), 1)
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

	if _, err := cleanup.New(db, strategies.All(), cleanup.Config{}); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns(2)") {
		t.Errorf("one connection: %v", err)
	}
	db.SetMaxOpenConns(2)
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
	var path string
	must(t, db.QueryRowContext(t.Context(), "show search_path").Scan(&path))
	if n := db.Stats().InUse; path != "nowhere" || n != 0 {
		t.Errorf("search_path %s, %d connections in use", path, n)
	}

	// Another driver is refused in words.
	other := openSQL(t, openPQ, url, 2)
	err = migrations.Up(t.Context(), other)
	wantLine(t, err, "pq.conn", "github.com/jackc/pgx/v5/stdlib")
	cleaner, err = cleanup.New(other, strategies.All(), cleanup.Config{})
	must(t, err)
	_, err = cleaner.RunOnce(t.Context())
	wantLine(t, err, "pq.conn", "github.com/jackc/pgx/v5/stdlib")
}

package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A publication for all tables refuses updates and deletes of a table whose rows it cannot identify.
// Everything goes on under one, and reaches a subscriber.
func TestEveryTableIsReplicatedLogically(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Options{From: []pgserver.Source{pgserver.Local, pgserver.Embedded}, Settings: map[string]string{"fsync": "off", "wal_level": "logical"}})
	if err != nil {
		t.Skipf("no server of its own: %v", err)
	}
	t.Cleanup(func() { must(t, server.Stop()) })
	source := newPool(t, server.URL(""), 8)
	execute(t, source, `create database subscriber`)
	target := newPool(t, server.URL("subscriber"), 4)
	for _, pool := range []*pgxpool.Pool{source, target} {
		must(t, migrations.Up(t.Context(), pool))
	}
	fillEveryTable(t, source)

	execute(t, source, `create publication p for all tables`)
	execute(t, source, `select pg_create_logical_replication_slot('p', 'pgoutput')`) // within one server, the subscription cannot
	execute(t, target, `truncate pglimit.goose_db_version`)                          // as the handbook says
	execute(t, target, `create subscription p connection '`+server.URL("")+`' publication p with (create_slot = false)`)
	arrives := func(what string) {
		t.Helper()
		eventually(t, target, `select not exists (select from pg_subscription_rel where srsubstate <> 'r')`)
		// A commit that waits for the disk: those of a sweep and of relaxed grants do not.
		execute(t, source, `set local synchronous_commit = on; select pg_logical_emit_message(true, 'arrives', '')`)
		lsn := query[string](t, source, `select pg_current_wal_lsn()::text`)
		eventually(t, source, fmt.Sprintf(`select confirmed_flush_lsn >= '%s' from pg_replication_slots where slot_name = 'p'`, lsn))
		t.Log(what)
		wantRows(t, rowsOf(t, source), target)
	}
	arrives("the first copy")

	for _, strategy := range strategies.All() {
		take(t, source, strategy, "later", hours)
		limiter := newLimiter(t, source, strategy, pglimit.Config{Name: "test", Limit: hours})
		must(t, limiter.Reset(t.Context(), "k"))
	}
	execute(t, source, `select pglimit.set_limit('every', '2/1h', key => 'k', note => 'more'), pglimit.set_limit('every', '2/1h', note => 'all');
		select pglimit.delete_limit('every', key => 'k', note => 'less')`)
	arrives("takes, resets, changes of limits")

	// Rows of every table that are long expired go.
	execute(t, source, `
		update pglimit.token_bucket set full_ns = 1000, at_ns = 1, until_ns = null, leased_ns = null;
		update pglimit.token_bucket_answers set until_ns = 1000;
		update pglimit.token_bucket_blocks set forget_ns = 1000;
		update pglimit.permits set forget_ns = 1000;
		update pglimit.upsert set full_ns = 1000, at_ns = 1;
		update pglimit.sliding_window set full_ns = 1000, at_ns = 1;
		update pglimit.sliding_log set full_ns = 1000, at_ns = 1;
		update pglimit.warm_up set full_ns = 1000, at_ns = 1;
		update pglimit.for_update_nowait set full_ns = 1000, at_ns = 1;
		update pglimit.exclusion_range set during = '[2020-01-01,2020-01-02)' where key = 'later'`)
	cleaner, err := cleanup.New(source, strategies.All(), cleanup.Config{})
	must(t, err)
	report, err := cleaner.RunOnce(t.Context())
	must(t, err)
	if len(report.Strategies) != len(strategies.All()) {
		t.Errorf("swept %+v", report)
	}
	for _, s := range report.Strategies {
		if s.Removed == 0 {
			t.Errorf("nothing of %s was removed", s.Strategy)
		}
	}
	arrives("a sweep")

	// Sequences are not replicated. A change of limits at the subscriber, once everything has moved there, is seen all
	// the same.
	before := query[string](t, target, `select pglimit.limits_since('')::json ->> 'stamp'`)
	execute(t, target, `select pglimit.set_limit('every', '3/1h', note => 'moved')`)
	if after := query[string](t, target, `select pglimit.limits_since('')::json ->> 'stamp'`); after == before {
		t.Errorf("the stamp is still %s", after)
	}

	must(t, migrations.SetStorage(t.Context(), source, migrations.Unlogged))
	must(t, migrations.SetStorage(t.Context(), source, migrations.Logged))
	must(t, migrations.DownTo(t.Context(), source, 0))
	execute(t, target, `alter subscription p disable; alter subscription p set (slot_name = none); drop subscription p`)
	eventually(t, source, `select not active from pg_replication_slots where slot_name = 'p'`)
	execute(t, source, `select pg_drop_replication_slot('p')`)
}

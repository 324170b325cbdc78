package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// tablesInOrder are the tables of the strategies, in the order of 00001_tables.sql.
func tablesInOrder(t *testing.T, pool *pgxpool.Pool) (names []string) {
	t.Helper()
	tables, err := migrations.ReadStorage(t.Context(), pool)
	must(t, err)
	for _, table := range tables {
		names = append(names, table.Table)
	}
	return names
}

// outOfOrder calls act while each of the tables is locked by a session of its own, as a change of its storage does,
// and lets it have one after another. It returns where act held a later table while it waited for an earlier one:
// two calls of which one did so would deadlock. The sessions of act are named "acting".
func outOfOrder(t *testing.T, pool *pgxpool.Pool, tables []string, act func()) (found []string) {
	t.Helper()
	holders := map[string]pgx.Tx{}
	for _, table := range tables {
		holders[table] = begin(t, pool)
		execute(t, holders[table], "lock table "+table+" in access exclusive mode")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		act()
	}()
	for {
		select {
		case <-done:
			for _, holder := range holders {
				must(t, holder.Rollback(t.Context()))
			}
			return found
		case <-time.After(time.Millisecond):
		}
		for _, waits := range texts(t, pool, `select distinct relation::regclass::text from pg_locks join pg_stat_activity using (pid)
				where datname = current_database() and application_name = 'acting' and not granted and relation::regclass::text = any ($1)`, tables) {
			holder := holders[waits]
			if holder == nil { // it has just got it
				continue
			}
			later := tables[slices.Index(tables, waits)+1:]
			held := texts(t, pool, `select distinct relation::regclass::text from pg_locks join pg_stat_activity using (pid)
				where datname = current_database() and application_name = 'acting' and granted and relation::regclass::text = any ($1) order by 1`, later)
			if len(held) > 0 {
				found = append(found, fmt.Sprintf("%v while it waits for %s", held, waits))
			}
			must(t, holder.Rollback(t.Context()))
			delete(holders, waits)
		}
	}
}

// Whatever is called, it goes to the tables in one order, on a new connection and on one that has plans.
func TestEveryCallGoesToTheTablesInOneOrder(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	tables := tablesInOrder(t, admin)
	pool := newPool(t, with(databaseURL(admin), "application_name", "acting"), 2)
	acts := everyAct(pool)
	for _, name := range []string{"truncate", "alter", "create", "replace a view", "forget a version", "write the version", "sweep on schedule"} {
		delete(acts, name)
	}
	for _, s := range strategies.All() {
		acts["reset all by "+s.Name()] = func(ctx context.Context) error {
			_, err := s.(pglimit.AllResetter).ResetAll(ctx, on(pool), "test")
			return err
		}
		acts["sweep by "+s.Name()] = func(ctx context.Context) error {
			_, err := s.Sweep(ctx, on(pool), 0, 1000)
			return err
		}
	}
	acts["groups"] = func(ctx context.Context) error {
		_, err := strategies.TokenBucket{}.Take(ctx, on(pool), grouped(asks(hours, "g", "h"), asks(hours, "h", "i")))
		return err
	}
	for name, act := range acts {
		for _, connection := range []string{"new", "used"} {
			if connection == "new" {
				pool.Reset()
			}
			for _, found := range outOfOrder(t, admin, tables, func() { _ = act(soon(t, time.Minute)) }) {
				t.Errorf("%s, on a %s connection, holds %s", name, connection, found)
			}
		}
	}
}

// A migration that drops the tables does so, too.
func TestDownGoesToTheTablesInThatOrder(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	tables := tablesInOrder(t, admin)
	down := func() {
		_ = migrations.DownTo(t.Context(), migrationPool(t, databaseURL(admin), setting("application_name", "acting")), 0, migrations.WithLockTimeout(0))
	}
	for _, found := range outOfOrder(t, admin, tables, down) {
		t.Errorf("it holds %s", found)
	}
}

package integration

import (
	"context"
	"slices"
	"testing"
	"time"

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

// heldOutOfOrder calls act while a transaction holds the first tables, as a change of their storage does, and
// returns which of the other tables act holds while it waits. That transaction goes on to those, and the two
// would deadlock.
func heldOutOfOrder(t *testing.T, pool *pgxpool.Pool, first, others []string, act func()) (held []string) {
	t.Helper()
	holder := begin(t, pool)
	for _, table := range first {
		execute(t, holder, "lock table "+table+" in access exclusive mode")
	}
	whileBlocked(t, pool, act, func() {
		held = texts(t, pool, `select distinct relation::regclass::text from pg_locks join pg_stat_activity using (pid)
			where datname = current_database() and application_name = 'acting' and granted and relation = any ($1::text[]::regclass[]) order by 1`, others)
		must(t, holder.Rollback(t.Context()))
	})
	return held
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
			for i := range tables[1:] {
				if connection == "new" {
					pool.Reset()
				}
				held := heldOutOfOrder(t, admin, tables[:i+1], tables[i+1:], func() { _ = act(soon(t, 20*time.Second)) })
				if len(held) > 0 {
					t.Errorf("%s, on a %s connection, holds %v while it waits for one of %v", name, connection, held, tables[:i+1])
				}
			}
		}
	}
}

// A migration that drops the tables does so, too.
func TestDownGoesToTheTablesInThatOrder(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	tables := tablesInOrder(t, admin)
	for i := range slices.Backward(tables[1:]) {
		ctx, cancel := context.WithCancel(t.Context())
		held := heldOutOfOrder(t, admin, tables[:i+1], tables[i+1:], func() {
			_ = migrations.DownTo(ctx, migrationPool(t, databaseURL(admin), setting("application_name", "acting")), 0, migrations.WithLockTimeout(0))
		})
		cancel()
		if len(held) > 0 {
			t.Errorf("it holds %v while it waits for one of %v", held, tables[:i+1])
		}
		must(t, migrations.Up(t.Context(), admin))
	}
}

package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Storage is how Postgres keeps the tables of the buckets.
type Storage string

const (
	// Logged is the default of Postgres: changes go through the WAL, so they survive
	// a crash and reach the replicas.
	Logged Storage = "logged"

	// Unlogged tables write no WAL for their rows. That is faster, and promises what
	// a Redis without persistence promises:
	//
	//   - After a crash of the server they are empty, so every bucket is full, no key is
	//     blocked, and no ID is known. After a clean restart they are as they were.
	//   - Replicas get nothing: a read there fails, and after a failover every bucket is
	//     full.
	//   - pglimit.Durable waits for nothing there, and is as good as Relaxed.
	Unlogged Storage = "unlogged"
)

// TableStorage is how one table is kept.
type TableStorage struct {
	Table   string  `json:"table"` // such as "pglimit.token_bucket"
	Storage Storage `json:"storage"`
}

// errNoTables: the database has no table whose storage could be read or set.
var errNoTables = errors.New("migrations: there are no tables of buckets in this database: migrate it first (Up, or pglimit migrate up)")

// SetStorage makes the tables of all strategies logged or unlogged. Their rows stay: no
// bucket is forgotten. The schedule of the cleanup and the record of what is migrated are
// always logged. Tables that a later migration adds are logged until SetStorage is called
// again.
//
// It rewrites the tables in one transaction. Nobody else can use them meanwhile, so takes
// wait: some seconds for a million buckets. It locks all of them before it begins. If
// another open transaction holds one, SetStorage waits as [WithLockTimeout] says, lets
// the others go on, and tries again until the context ends.
//
// Only the owner of the tables may do this. Tables that have this storage already are
// left alone.
func SetStorage[D DB](ctx context.Context, db D, storage Storage, opts ...Option) error {
	if storage != Logged && storage != Unlogged {
		return fmt.Errorf("migrations: the storage is %q: it must be %q or %q", string(storage), Logged, Unlogged)
	}
	return inTransaction(ctx, postgres.On(db), newOptions(opts), func(s *session) error {
		todo, err := readStorage(ctx, s.tx)
		if err != nil {
			return err
		}
		todo = slices.DeleteFunc(todo, func(t TableStorage) bool { return t.Storage == storage })
		if len(todo) == 0 {
			return nil
		}
		if d, err := readDistribution(ctx, s.tx); err != nil {
			return err
		} else if slices.ContainsFunc(todo, func(t TableStorage) bool { return slices.Contains(d.Tables, t.Table) }) {
			return fmt.Errorf("migrations: the tables are %s: Citus cannot change how such tables are kept: bring them back first (Undistribute, or pglimit distribute --undo), "+
				"set the storage, and distribute them again, which keeps it", d)
		}
		// Lock all of them first, so that none is rewritten in vain.
		names, err := s.lockTables(ctx, todo)
		if err == nil {
			err = s.execEach(ctx, "alter table %s set "+string(storage), names)
		}
		if err != nil {
			f := fail("cannot make the tables "+string(storage), err)
			if postgres.Is(err, postgres.InsufficientPrivilege) {
				f.advice = "only the owner of the tables may, or a superuser"
			}
			return f
		}
		s.done = append(s.done, func() { s.log.InfoContext(ctx, "pglimit: tables are "+string(storage)+" now", "tables", names) })
		return s.commit(ctx)
	})
}

// lockTables locks the tables in their order, in which every call goes to them (see sql/00001_tables.sql).
func (s *session) lockTables(ctx context.Context, tables []TableStorage) (names []string, err error) {
	for _, t := range tables {
		names = append(names, t.Table)
	}
	_, err = s.tx.Exec(ctx, "lock table "+strings.Join(names, ", ")+" in access exclusive mode")
	return names, err
}

// ReadStorage says how the strategies' tables in this database are kept. It only reads,
// and needs no right.
func ReadStorage[D DB](ctx context.Context, db D) ([]TableStorage, error) {
	on := postgres.On(db)
	if on == nil {
		return nil, errNoPool
	}
	return readStorage(ctx, on)
}

func readStorage(ctx context.Context, db rate.Session) ([]TableStorage, error) {
	var tables, storages []string
	err := db.Row(ctx, `
		select pg_catalog.array_agg('pglimit.' || t.name order by t.place),
			pg_catalog.array_agg(case when c.relpersistence = 'u' then 'unlogged' else 'logged' end order by t.place)
		from pg_catalog.unnest($1::text[]) with ordinality t (name, place)
		join pg_catalog.pg_class c on c.relname = t.name
		join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit'`, []any{tableNames(bucketTables)}, &tables, &storages)
	if err != nil {
		return nil, fail("cannot read how the tables are kept", err)
	}
	var out []TableStorage
	for i, table := range tables {
		out = append(out, TableStorage{table, Storage(storages[i])})
	}
	if len(out) == 0 {
		return nil, errNoTables
	}
	return out, nil
}

// Memory is what the buckets take, and what the server has for them.
type Memory struct {
	Tables        int64 `json:"tables_bytes"`         // bytes of the strategies' tables with their indexes, as of the last analyze of each
	SharedBuffers int64 `json:"shared_buffers_bytes"` // bytes of the server's shared_buffers, which other tables use, too
}

// Short says that the tables do not fit into shared_buffers. If most of their keys are in use, decisions read
// pages from the operating system, or from the disk.
func (m Memory) Short() bool { return m.Tables > m.SharedBuffers }

// ReadMemory says whether the server has memory for the buckets of this database. It only reads catalogs: it
// needs no right, waits for no lock, and takes as long for ten million keys as for ten.
func ReadMemory[D DB](ctx context.Context, db D) (memory Memory, err error) {
	on := postgres.On(db)
	if on == nil {
		return memory, errNoPool
	}
	// pg_total_relation_size would wait for whoever has locked a table exclusively.
	err = on.Row(ctx, `
		select coalesce(pg_catalog.sum(c.relpages::bigint), 0)::bigint * pg_catalog.current_setting('block_size')::bigint,
			pg_catalog.pg_size_bytes(pg_catalog.current_setting('shared_buffers'))
		from pg_catalog.pg_class c
		left join pg_catalog.pg_index i on i.indexrelid = c.oid
		join pg_catalog.pg_class t on t.oid = coalesce(i.indrelid, c.oid) and t.relname = any ($1::text[])
		join pg_catalog.pg_namespace n on n.oid = t.relnamespace and n.nspname = 'pglimit'`, []any{tableNames(bucketTables)}, &memory.Tables, &memory.SharedBuffers)
	if err != nil {
		return memory, fail("cannot read what memory the tables need", err)
	}
	return memory, nil
}

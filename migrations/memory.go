package migrations

import (
	"context"

	"github.com/pglimit/ratelimit/internal/postgres"
)

// Memory is what the buckets take, and what the server has for them.
type Memory struct {
	Tables        int64 // bytes of the strategies' tables with their indexes, as of the last analyze of each
	SharedBuffers int64 // bytes of the server's shared_buffers, which other tables use, too
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

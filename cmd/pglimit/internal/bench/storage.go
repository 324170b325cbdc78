package bench

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Storage of a strategy's table: what a grant costs depends on it.
const (
	logged   = "logged"
	unlogged = "unlogged" // no WAL for rows; empty after a crash
)

// readStorage of a table. Empty: there is no such table.
func readStorage(ctx context.Context, pool *pgxpool.Pool, table string) (storage string, err error) {
	err = pool.QueryRow(ctx, `
		select coalesce((
			select case when c.relpersistence = 'u' then $2::text else $3::text end
			from pg_catalog.pg_class c where c.oid = pg_catalog.to_regclass($1::text)), '')`,
		table, unlogged, logged,
	).Scan(&storage)
	return storage, err
}

package bench

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/pglimit"
)

// counted is what others count while callers note their answers: the server (for all its clients), the wire, and the
// limiters.
type counted struct {
	wal    int64 // bytes
	trips  int64
	stages pglimit.Stats
}

func (s *strategyRun) count(ctx context.Context) (c counted, err error) {
	c.trips, c.stages = s.meter.Trips(), readStages(s.instances)
	err = s.observer.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&c.wal)
	return c, err
}

// readStorage of a table: what a grant costs depends on it.
func readStorage(ctx context.Context, pool *pgxpool.Pool, table string) (storage string, err error) {
	err = pool.QueryRow(ctx, `
		select case relpersistence when 'u' then 'unlogged' else 'logged' end
		from pg_catalog.pg_class where oid = pg_catalog.to_regclass($1)`, table).Scan(&storage)
	return storage, err
}

// countWAL puts what the server wrote between two readings into the run.
func countWAL(run *result.Run, before, after counted) {
	wal := after.wal - before.wal
	run.WALBytes, run.WALBytesPerDecision = &wal, new(round(ratio(wal, run.Decisions), 3))
}

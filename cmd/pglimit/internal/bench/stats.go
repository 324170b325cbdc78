package bench

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/pglimit"
)

// counted is what others count while callers note their answers: the server (for all its clients), the wire, and the
// limiters.
type counted struct {
	wal       int64 // bytes
	deadlocks int64 // backends report them with a delay: see [flushStatistics] and [awaitStatistics]
	trips     int64
	stages    pglimit.Stats
}

func (s *strategyRun) count(ctx context.Context) (c counted, err error) {
	c.trips, c.stages = s.meter.Trips(), readStages(s.instances)
	err = s.observer.QueryRow(ctx, `
		select (pg_current_wal_insert_lsn() - '0/0')::bigint, deadlocks
		from pg_catalog.pg_stat_database where datname = current_database()`).Scan(&c.wal, &c.deadlocks)
	return c, err
}

// readStorage of a table: what a grant costs depends on it.
func readStorage(ctx context.Context, pool *pgxpool.Pool, table string) (storage string, err error) {
	err = pool.QueryRow(ctx, `
		select case relpersistence when 'u' then 'unlogged' else 'logged' end
		from pg_catalog.pg_class where oid = pg_catalog.to_regclass($1)`, table).Scan(&storage)
	return storage, err
}

// countServer puts what the server counted between two readings into the run.
func countServer(run *result.Run, before, after counted) {
	wal := after.wal - before.wal
	run.WALBytes, run.WALBytesPerDecision = &wal, new(round(ratio(wal, run.Decisions), 3))
	run.Deadlocks = new(max(0, after.deadlocks-before.deadlocks)) // a crash resets them
}

// flushStatistics makes every connection report what it did so far, which it would
// otherwise put off for up to ten seconds.
func flushStatistics(ctx context.Context, instances []instance, conns int) error {
	for _, in := range instances {
		err := in.onEveryConn(ctx, conns, func(conn *pgxpool.Conn) error {
			_, err := conn.Exec(ctx, "select pg_stat_force_next_flush()")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// exitTime is how long backends whose connections are closed may take to be gone.
const exitTime = 3 * time.Second

// awaitStatistics returns when every backend of that application_name is gone: a backend
// reports what it did before it goes. If some stay (a connection pooler keeps them, or a
// deadlock holds them), the statistics may lack the last seconds.
func awaitStatistics(ctx context.Context, pool *pgxpool.Pool, application string) error {
	for deadline := time.Now().Add(exitTime); ; {
		var left int
		err := pool.QueryRow(ctx, "select count(*) from pg_catalog.pg_stat_activity where application_name = $1", application).Scan(&left)
		if err != nil || left == 0 || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

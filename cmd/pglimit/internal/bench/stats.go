package bench

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// position of the server: how much WAL it has written and how many transaction ids it has
// given out, for all its clients. Reading it uses up neither.
type position struct{ wal, xids int64 }

// positionColumns are the two numbers of a position.
const positionColumns = `(pg_current_wal_insert_lsn() - '0/0')::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint`

func readPosition(ctx context.Context, pool *pgxpool.Pool) (p position, err error) {
	err = pool.QueryRow(ctx, "select "+positionColumns).Scan(&p.wal, &p.xids)
	return p, err
}

// statistics that backends report with a delay: see [flushStatistics] and
// [awaitStatistics].
type statistics struct{ deadlocks, dead, updates, hotUpdates int64 }

// readStatistics of the database, and of the strategy's table if there is one.
func readStatistics(ctx context.Context, pool *pgxpool.Pool, table string) (s statistics, err error) {
	err = pool.QueryRow(ctx, `
		select d.deadlocks, coalesce(t.n_dead_tup, 0), coalesce(t.n_tup_upd, 0), coalesce(t.n_tup_hot_upd, 0)
		from pg_catalog.pg_stat_database d
		left join pg_catalog.pg_stat_user_tables t on t.relid = to_regclass($1)
		where d.datname = current_database()`, table,
	).Scan(&s.deadlocks, &s.dead, &s.updates, &s.hotUpdates)
	return s, err
}

// reading of all counters at one moment.
type reading struct {
	position
	statistics
}

// since puts what was counted between two readings into the run. complete says that every
// backend had reported by then.
func (r reading) since(before reading, complete bool, run *result.Run) {
	wal, xids := r.wal-before.wal, r.xids-before.xids
	run.WALBytes = &wal
	run.WALBytesPerDecision = new(round(ratio(wal, run.Decisions), 3))
	run.TransactionIDsPerDecision = new(round(ratio(xids, run.Decisions), 6))
	run.Deadlocks = new(max(0, r.deadlocks-before.deadlocks)) // a crash resets them
	run.DeadTuples = new(max(0, r.dead-before.dead))          // autovacuum may have been there
	run.StatisticsComplete = complete
	if updates := r.updates - before.updates; updates > 0 {
		run.HOTUpdateRatio = new(round(ratio(r.hotUpdates-before.hotUpdates, updates), 6))
	}
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
// reports what it did before it goes. It returns false if some stayed (a connection
// pooler keeps them, or a deadlock holds them): then the statistics may lack the last
// seconds.
func awaitStatistics(ctx context.Context, pool *pgxpool.Pool, application string) (complete bool, err error) {
	for deadline := time.Now().Add(exitTime); ; {
		var left int
		err := pool.QueryRow(ctx, "select count(*) from pg_catalog.pg_stat_activity where application_name = $1", application).Scan(&left)
		if err != nil || left == 0 {
			return left == 0, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

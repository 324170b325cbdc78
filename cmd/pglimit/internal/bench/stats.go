package bench

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
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
	run.WALBytesPerDecision = new(round(ratio(wal, run.Decisions), 3))
}

// readStages sums up what the limiters of all instances did so far.
func readStages(instances []instance) (sum pglimit.Stats) {
	for _, in := range instances {
		sum = sum.Plus(in.limiter.Stats())
	}
	return sum
}

func stagesOn(s scenario.Stages) result.Stages {
	return result.Stages{Combining: !s.NoCombining, Memory: !s.NoMemory, Leases: s.Leases}
}

// withStages adds to on what the stages did, and what that came to.
func withStages(on result.Stages, did pglimit.Stats) result.Stages {
	decisions := did.Allowed.Total() + did.Denied.Total()
	decided := did.Allowed[pglimit.FromDatabase] + did.Denied[pglimit.FromDatabase]
	on.RememberedRatio = round(ratio(did.Denied[pglimit.FromMemory], decisions), 6)
	on.LeasedRatio = round(ratio(did.Allowed[pglimit.FromLease], decisions), 6)
	on.CallersPerRoundTrip = round(ratio(decided, did.RoundTrips), 3)
	on.RequestsPerRoundTrip = round(ratio(did.Requests, did.RoundTrips), 3)
	return on
}

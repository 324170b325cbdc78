package integration

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// finalDeadlocks is how many deadlocks there were in the pool's database. It closes the
// other pools: a session may keep what it counted to itself until it ends.
func finalDeadlocks(t *testing.T, pool *pgxpool.Pool, others ...*pgxpool.Pool) int64 {
	t.Helper()
	for _, other := range others {
		other.Close()
	}
	pool.Reset()
	eventually(t, pool, `select not exists (select from pg_stat_activity
		where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend')`)
	return query[int64](t, pool, deadlocks)
}

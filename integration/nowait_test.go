package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// for_update_nowait never queues: while somebody holds the row, it answers that the key is
// contended, also those who would wait as long as it takes.
func TestForUpdateNowaitNeverQueues(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(100)
	for name, db := range map[string]func(*testing.T, *pgxpool.Pool) database{
		"on its own":                  func(_ *testing.T, pool *pgxpool.Pool) database { return pool },
		"in the caller's transaction": func(t *testing.T, pool *pgxpool.Pool) database { return begin(t, pool) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.ForUpdateNowait{}
			for _, key := range []string{"free", "held"} {
				take(t, pool, s, key, limit)
			}
			holder := begin(t, pool)
			execute(t, holder, "select from pglimit.for_update_nowait where key = 'held' for no key update")
			mine := db(t, pool)
			type answer struct {
				decisions []pglimit.Decision
				err       error
			}
			answers := make(chan answer, 1)
			whileBlocked(t, pool, func() { // with no deadline
				decisions, err := s.Take(t.Context(), on(mine), asks(limit, "held"))
				answers <- answer{decisions, err}
			}, func() {
				select {
				case a := <-answers:
					if d := a.decisions; a.err != nil || !d[0].Contended || d[0].Allowed {
						t.Errorf("%+v, %v: want contended", d, a.err)
					}
				case <-time.After(time.Minute): // it waits for the holder
					t.Error("it queued")
				}
				commit(t, holder)
			})
			// The rest is not disturbed by it, nor the transaction that it was in.
			for _, key := range []string{"free", "held"} {
				if !take(t, mine, s, key, limit).Allowed {
					t.Errorf("%s is denied though nobody holds it", key)
				}
			}
		})
	}
}

package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Callers who leave during their call break its connection, and database/sql hands it to the next one
// who waits for one. He gets another.
func TestSQLABrokenConnectionIsNotTheNextCallersFault(t *testing.T) {
	t.Parallel()
	const callers = 64 // of each kind: enough to be handed three broken ones in a row
	on := postgres.OnSQLDB(openSQL(t, sqlDrivers[0].open, databaseURL(newMigrated(t)), 16))
	until := soon(t, 1500*time.Millisecond)
	var work sync.WaitGroup
	for i := range callers {
		random := rand.New(rand.NewPCG(uint64(i), 67))
		take := func(ctx context.Context) error {
			_, err := strategies.TokenBucket{}.Take(ctx, on, []rate.Request{{Limiter: "test", Key: strconv.Itoa(i), Limit: plenty, Tokens: 1, Unit: 1}})
			return err
		}
		work.Go(func() {
			for until.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(2*time.Millisecond))))
				_ = take(ctx)
				cancel()
			}
		})
		work.Go(func() {
			for until.Err() == nil {
				if err := take(t.Context()); err != nil {
					t.Errorf("somebody who stayed: %v", err)
					return
				}
			}
		})
	}
	work.Wait()
}

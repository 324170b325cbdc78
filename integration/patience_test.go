package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// An impatient take gives up soon if somebody holds the row, also if the clock has stepped back and
// the row must be corrected first.
func TestAnImpatientTakeDoesNotWaitToCorrectARow(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour)
		take(t, pool, strategy, "k", limit)
		age(t, pool, strategy, -time.Minute) // as if the take had been by a clock a minute ahead
		execute(t, begin(t, pool), "select from pglimit."+strategy.Name()+" for update")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		decisions, err := strategy.Take(ctx, on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1, Impatient: true}})
		if err == nil && decisions[0].Contended { // as for_update_nowait says it
			return
		}
		if !errors.Is(err, pglimit.ErrLocked) || !errors.Is(err, pglimit.ErrNothingTaken) {
			t.Errorf("%+v, %v: want ErrLocked", decisions, err)
		}
	})
}

// A table that is locked is no row that is: no strategy makes a denial of it.
func TestALockedTableIsAnError(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour)
		execute(t, begin(t, pool), "lock table pglimit."+strategy.Name()+" in share row exclusive mode")
		soon := newPool(t, withParameter(databaseURL(pool), "lock_timeout", "50ms"), 2)
		for name, on := range map[string]database{"alone": soon, "in a transaction": begin(t, soon)} {
			if d, err := tryTake(t, on, strategy, "k", limit); !errors.Is(err, pglimit.ErrLocked) {
				t.Errorf("%s: %+v, %v: want ErrLocked", name, d, err)
			}
		}
	})
}

package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A take that waited for the row is decided by the clock as it is then. If it went
// by the time at which it was sent, all that came while another held the row would
// be let through at once when it goes.
func TestTakesThatWaitedAreDecidedByTheClockAfterwards(t *testing.T) {
	t.Parallel()
	const interval = 200 * time.Millisecond
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(interval)
		take(t, pool, strategy, "k", limit)
		holder := begin(t, pool)
		for !take(t, holder, strategy, "k", limit).Allowed {
		}
		const callers = 3
		allowed := make(chan bool, callers)
		for range callers {
			go func() {
				d, err := tryTake(t, pool, strategy, "k", limit)
				if err != nil {
					t.Error(err)
				}
				allowed <- d.Allowed
			}()
			passes(t, pool, interval*11/10)
		}
		answered := len(allowed) // of those that had nothing to wait for
		for range answered {
			<-allowed
		}
		commit(t, holder)
		grants := 0
		for range callers - answered {
			if <-allowed {
				grants++
			}
		}
		if grants > 1 {
			t.Errorf("%d of those that waited were granted at once", grants)
		}
	})
}

// The same for the first take of a key, which waited for another that was undone. In the caller's
// transaction, too, it is tried again, and does not abort that.
func TestAFirstTakeThatWaitedIsDatedAfterwards(t *testing.T) {
	t.Parallel()
	const interval = 300 * time.Millisecond
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(interval)
		for key, on := range map[string]database{"alone": pool, "in a transaction": begin(t, pool)} {
			holder := begin(t, pool)
			take(t, holder, strategy, key, limit)
			var waited pglimit.Decision
			var until time.Time
			whileBlocked(t, pool, func() {
				var err error
				if waited, err = tryTake(t, on, strategy, key, limit); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}, func() {
				passes(t, pool, interval*11/10)
				until = query[time.Time](t, pool, "select clock_timestamp()")
				if err := holder.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			})
			next := take(t, on, strategy, key, limit)
			if !waited.Allowed || next.Allowed && next.At.Sub(waited.At) < interval {
				t.Errorf("%s: first %+v, next %+v", key, waited, next)
			}
			if waited.At.Before(until) {
				t.Errorf("%s: the take is dated %v before the end of its wait", key, until.Sub(waited.At))
			}
		}
	})
}

// passes waits until so much time has passed by the database's clock.
func passes(t *testing.T, pool *pgxpool.Pool, d time.Duration) {
	t.Helper()
	execute(t, pool, "select pg_sleep($1)", d.Seconds())
}

// A commit that fails is an error, also through a database type of the caller's own.
func TestACommitThatFailsIsNoGrant(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		execute(t, pool, `create or replace function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$`)
		execute(t, pool, `create constraint trigger refuse after insert or update on pglimit.`+strategy.Name()+`
			deferrable initially deferred for each row execute function refuse()`)
		type wrapped struct{ *pgxpool.Pool }
		for name, db := range map[string]database{"pool": pool, "wrapped": wrapped{pool}} {
			if d, err := tryTake(t, db, strategy, "k", hours); err == nil {
				t.Errorf("%s: %+v without an error", name, d)
			}
			_, err := strategy.Take(t.Context(), on(db), []pglimit.Request{
				{Limiter: "test", Key: "a", Limit: hours, Tokens: 1, Unit: 1},
				{Limiter: "test", Key: "b", Limit: hours, Tokens: 1, Unit: 1},
			})
			if err == nil {
				t.Errorf("%s: two keys without an error", name)
			}
		}
	})
}

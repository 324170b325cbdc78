package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
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
			_, err := strategy.Take(t.Context(), on(db), []rate.Request{
				{Limiter: "test", Key: "a", Limit: hours, Tokens: 1, Unit: 1},
				{Limiter: "test", Key: "b", Limit: hours, Tokens: 1, Unit: 1},
			})
			if err == nil {
				t.Errorf("%s: two keys without an error", name)
			}
		}
	})
}

// A call of many that had to wait for long has taken nothing, and is made once more: what it was
// granted before would come on top of what flowed back meanwhile. Whether the bucket that it
// waited for is there then, or not, or was merely held.
func TestACallOfManyThatWaitedIsDatedAfterwards(t *testing.T) {
	t.Parallel()
	const wait = 150 * time.Millisecond
	limit := hours.WithBurst(100)
	for name, test := range map[string]struct {
		known, rollsBack bool
		owed             string // by both buckets in the end
	}{
		"made, rolled back":       {false, true, "2 1"},
		"made":                    {false, false, "2 2"},
		"taken from, rolled back": {true, true, "2 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			patiently(t, pool)
			take(t, pool, s, "first", limit)
			if test.known {
				take(t, pool, s, "waited for", limit)
			}
			holder := begin(t, pool)
			take(t, holder, s, "waited for", limit)
			var decisions []pglimit.Decision
			var err error
			var over time.Time
			whileBlocked(t, pool, func() {
				for again := true; again; again = errors.Is(err, pglimit.ErrNothingTaken) { // a busy machine may be late again
					decisions, err = s.Take(t.Context(), on(pool), asks(limit, "first", "waited for"))
				}
			}, func() {
				passes(t, pool, wait)
				over = query[time.Time](t, pool, "select clock_timestamp()")
				if test.rollsBack {
					if err := holder.Rollback(t.Context()); err != nil {
						t.Error(err)
					}
				} else {
					commit(t, holder)
				}
			})
			must(t, err)
			for _, d := range decisions {
				if !d.Allowed || d.At.Before(over) {
					t.Errorf("%+v: want a grant, and dated after %v", d, over)
				}
			}
			if owed := query[string](t, pool, "select string_agg(tokens_owed::text, ' ' order by key) from pglimit.buckets"); owed != test.owed {
				t.Errorf("%s are owed, want %s", owed, test.owed)
			}
		})
	}
}

// A call of many that waited for a row which lacks tokens then is not denied by the time at which it began.
func TestACallOfManyThatWaitedIsNotDeniedByItsBeginning(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	patiently(t, pool)
	limit := pglimit.PerSecond(100).WithBurst(10)
	all := asks(limit, "a", "b")
	all[0].Tokens, all[0].Unit, all[1].Tokens, all[1].Unit = 10, 10, 10, 10
	execute(t, pool, "insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) select unnest(array['a', 'b']), $1, 1, $2, 1", all[0].Limiter, int64(limit.Token()))
	holder := begin(t, pool)
	takeAll(t, holder, strategies.TokenBucket{}, all...)
	var granted string
	whileBlocked(t, pool, func() {
		err := pool.QueryRow(t.Context(), `select array[rest[1][3], rest[2][3]]::text from pglimit.token_bucket_take_many('{a,b}', array[$1::text], array[$2::bigint], array[$3::bigint],
			'{5}', null, null, null, null, null, false, '20ms')`, all[0].Limiter, int64(limit.Token()), int64(limit.Window())).Scan(&granted)
		if sqlState(err) == "40001" { // a busy machine: the first half was there before it waited
			granted = "{5,5}"
		} else if err != nil {
			t.Error(err)
		}
	}, func() {
		passes(t, pool, limit.Window())
		commit(t, holder)
	})
	if granted != "{5,5}" {
		t.Errorf("%s granted, of full buckets", granted)
	}
}

// A call of many that needs a bucket which another transaction is making, or has locked,
// gives up soon, and takes nothing. In the caller's transaction it waits, as one for that
// bucket alone does, however long it takes.
func TestACallOfManyWaitsInTheCallersTransactionOnly(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"in the making": false, "locked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			timelessly(t, pool)
			limit := hours.WithBurst(100)
			take(t, pool, s, "old", limit)
			if known {
				take(t, pool, s, "stuck", limit)
			}
			holder := begin(t, pool)
			take(t, holder, s, "stuck", limit)
			before := query[int64](t, pool, "select sum(full_ns)::bigint from pglimit.token_bucket")

			began := time.Now()
			_, err := s.Take(t.Context(), on(pool), asks(limit, "new", "old", "stuck"))
			if !errors.Is(err, pglimit.ErrLocked) || !errors.Is(err, pglimit.ErrNothingTaken) {
				t.Errorf("outside a transaction: %v", err)
			}
			if took := time.Since(began); took > time.Minute { // a call that does not give up waits for ever
				t.Errorf("it gave up after %v", took)
			}
			if after := query[int64](t, pool, "select sum(full_ns)::bigint from pglimit.token_bucket"); after != before {
				t.Error("it took something")
			}

			mine := begin(t, pool)
			var decisions []pglimit.Decision
			whileBlocked(t, pool, func() { decisions, err = s.Take(t.Context(), on(mine), asks(limit, "new", "old", "stuck")) }, func() {
				passes(t, pool, time.Second)
				commit(t, holder)
			})
			if err != nil || len(decisions) != 3 || !decisions[2].Allowed {
				t.Errorf("in a transaction: %+v, %v", decisions, err)
			}
		})
	}
}

// Two calls saw the same tokens and wait for the row, of a window so short that more is accepted behind the lock
// than was planned: less is not, and one of them gets nothing.
func TestTwoPlansForTheSameTokensAreNotBothKept(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.SlidingWindow{}
	execute(t, pool, stoppedClock)
	limit := pglimit.PerSecond(100_000).WithBurst(100)
	takeAll(t, pool, s, ask("k", limit, 1, 1))
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.sliding_window for update")
	granted := make(chan int64, 2)
	for range cap(granted) {
		go func() {
			decisions, err := s.Take(t.Context(), on(pool), []rate.Request{ask("k", limit, 60, 60)})
			if err != nil {
				t.Error(err)
				decisions = make([]pglimit.Decision, 1)
			}
			granted <- decisions[0].Granted
		}()
	}
	waiting(t, pool, cap(granted))
	commit(t, holder)
	if first, second := <-granted, <-granted; first+second != 60 {
		t.Errorf("%d and %d granted of the 99 that there are, want 60 together", first, second)
	}
}

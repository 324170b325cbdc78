package integration

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// The faults that rate limiters in SQL have. Each test plays sessions against each
// other step by step; shows, on a statement with the fault, that the play finds it;
// and then holds every strategy against it.

var allStrategies = strategies.All()

var hours = pglimit.Every(1000 * time.Hour) // nothing comes back during a test

// Trap A: the clock is read before the lock is held and the row's time is set back
// to it: the same span of time is credited twice.
func TestTrapAClockBeforeLock(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	// overAdmits lets a transaction that began early take late, and tells whether
	// a take right after a grant is then granted again.
	overAdmits := func(t *testing.T, pool *pgxpool.Pool, take taker) bool {
		t.Helper()
		early := begin(t, pool)
		execute(t, early, "select now()") // which stands still in this transaction
		take.must(t, pool, "k")           // the bucket is empty
		for !take.must(t, pool, "k") {
		}
		take.must(t, early, "k")
		commit(t, early)
		return take.must(t, pool, "k")
	}
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		pool, take := faulty(t, `insert into naive as n values ($1, 0, now())
			on conflict (key) do update set
				allowed = n.tokens + extract(epoch from greatest('0', now() - n.at)) / $2::double precision >= 1,
				tokens = (n.tokens + extract(epoch from greatest('0', now() - n.at)) / $2)::numeric % 1,
				at = now()
			returning allowed`, interval.Seconds())
		if !overAdmits(t, pool, take) {
			t.Error("the fault was not found")
		}
	})
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		var grants []time.Time
		overAdmits(t, pool, func(db database, key string) (bool, error) {
			d, err := tryTake(t, db, strategy, key, pglimit.Every(interval))
			if d.Allowed {
				grants = append(grants, d.At)
			}
			return d.Allowed, err
		})
		slices.SortFunc(grants, time.Time.Compare)
		for i := 1; i < len(grants); i++ { // the last one, if the machine stalled for so long
			if apart := grants[i].Sub(grants[i-1]); apart < interval {
				t.Errorf("granted twice within %v", apart)
			}
		}
	})
}

// Trap D: what is written was read in a snapshot, before the lock.
func TestTrapDReadThenWriteInOneSnapshot(t *testing.T) {
	t.Parallel()
	// overAdmits lets two takes go for one last token, the second while the first
	// is not committed.
	overAdmits := func(t *testing.T, pool *pgxpool.Pool, take taker) (second bool) {
		t.Helper()
		first := begin(t, pool)
		if !take.must(t, first, "k") {
			t.Fatal("the token was not there")
		}
		whileBlocked(t, pool, func() {
			var err error
			if second, err = take(pool, "k"); err != nil {
				t.Error(err)
			}
		}, func() { commit(t, first) })
		return second
	}
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		pool, take := faulty(t, `with seen as (select tokens from naive where key = $1)
			insert into naive as n select $1, tokens - 1, now() from seen where tokens >= 1
			on conflict (key) do update set tokens = excluded.tokens
			returning true`)
		execute(t, pool, "insert into naive values ('k', 1, now())")
		if !overAdmits(t, pool, take) {
			t.Error("the fault was not found")
		}
	})
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if overAdmits(t, pool, by(t, strategy, hours)) {
			t.Error("one token was granted twice")
		}
	})
	t.Run("row exists", func(t *testing.T) {
		t.Parallel()
		eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
			limit := hours.WithBurst(2)
			if inParts(strategy, limit) != limit {
				t.Skip("a burst of one is tested above")
			}
			take := by(t, strategy, limit)
			take.must(t, pool, "k")
			if overAdmits(t, pool, take) {
				t.Error("one token was granted twice")
			}
		})
	})
}

// Trap E: several keys are locked in the caller's order: two calls deadlock.
func TestTrapEKeysInTheCallersOrder(t *testing.T) {
	t.Parallel()
	// holdsTheOther makes a call for b and a wait for a, and tells whether it holds b
	// meanwhile: then a call for a and b could make it wait for ever.
	holdsTheOther := func(t *testing.T, pool *pgxpool.Pool, hold taker, both func() error) (held bool) {
		t.Helper()
		holder := begin(t, pool)
		hold.must(t, holder, "a")
		whileBlocked(t, pool, func() {
			if err := both(); err != nil {
				t.Error(err)
			}
		}, func() {
			probe := begin(t, pool)
			execute(t, probe, "set local lock_timeout = '200ms'")
			_, err := hold(probe, "b")
			if held = sqlState(err) == "55P03"; err != nil && !held {
				t.Error(err)
			}
			_ = probe.Rollback(t.Context())
			commit(t, holder)
		})
		return held
	}
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		pool, take := faulty(t, `insert into naive as n values ($1, 9, now())
			on conflict (key) do update set tokens = n.tokens - 1 returning true`)
		held := holdsTheOther(t, pool, take, func() error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				for _, key := range []string{"b", "a"} {
					if _, err := take(tx, key); err != nil {
						return err
					}
				}
				return nil
			})
		})
		if !held {
			t.Error("the fault was not found")
		}
	})
	ask := func(keys ...string) (requests []pglimit.Request) {
		for _, key := range keys {
			requests = append(requests, pglimit.Request{Limiter: "test", Key: key, Limit: hours, Tokens: 1, Unit: 1})
		}
		return requests
	}
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		held := holdsTheOther(t, pool, by(t, strategy, hours), func() error {
			tx := begin(t, pool) // where it waits
			_, err := strategy.Take(t.Context(), on(tx), ask("b", "a"))
			return errors.Join(err, tx.Rollback(t.Context()))
		})
		if held {
			t.Error("b was locked before a")
		}
	})
}

// Trap F: two first requests for a key: a unique violation instead of a decision.
func TestTrapFFirstInsert(t *testing.T) {
	t.Parallel()
	second := func(t *testing.T, pool *pgxpool.Pool, take taker) (allowed bool, err error) {
		t.Helper()
		first := begin(t, pool)
		if !take.must(t, first, "new") {
			t.Fatal("the first request was denied")
		}
		whileBlocked(t, pool, func() { allowed, err = take(pool, "new") }, func() { commit(t, first) })
		return allowed, err
	}
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		pool, take := faulty(t, `insert into naive select $1, 0, now()
			where not exists (select from naive where key = $1) returning true`)
		if _, err := second(t, pool, take); sqlState(err) != "23505" {
			t.Errorf("the fault was not found: %v", err)
		}
	})
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if allowed, err := second(t, pool, by(t, strategy, hours)); err != nil || allowed {
			t.Errorf("allowed %v, error %v: want a denial", allowed, err)
		}
	})
}

// Trap G: whole tokens are credited and the time is set to now: what was left over
// of a token is lost each time, and a key that is asked often gets nothing.
func TestTrapGFractionalRefillDropped(t *testing.T) {
	t.Parallel()
	// grants empties the bucket and polls until twenty tokens are due, and counts those that
	// were granted and those that were due: by the database's time, from after the first
	// denial to before the last, and at most until now.
	grants := func(t *testing.T, pool *pgxpool.Pool, take taker, interval time.Duration) (granted, due, most int) {
		t.Helper()
		clock := func() time.Time { return query[time.Time](t, pool, "select clock_timestamp()") }
		for take.must(t, pool, "k") {
		}
		began := clock()
		for due < 20 {
			ends := clock()
			for take.must(t, pool, "k") {
				granted++
			}
			due = int(ends.Sub(began) / interval)
		}
		return granted, due, int(clock().Sub(began) / interval)
	}
	t.Run("faulty", func(t *testing.T) {
		t.Parallel()
		const interval = 50 * time.Millisecond // longer than a poll takes
		pool, take := faulty(t, `insert into naive as n values ($1, 0, clock_timestamp())
			on conflict (key) do update set
				allowed = n.tokens + floor(extract(epoch from clock_timestamp() - n.at) / $2::double precision) >= 1,
				tokens = greatest(0, n.tokens + floor(extract(epoch from clock_timestamp() - n.at) / $2) - 1),
				at = clock_timestamp()
			returning allowed`, interval.Seconds())
		if granted, _, most := grants(t, pool, take, interval); granted >= most {
			t.Errorf("%d of %d granted: the fault was not found", granted, most)
		}
	})
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		// With a burst no token overflows while a poll is under way.
		const interval = 20 * time.Millisecond
		limit := pglimit.Every(interval).WithBurst(300)
		if strategy.Check(&pglimit.Request{Limit: limit}) != nil {
			t.Skip("a range of time has no fractions")
		}
		if granted, due, _ := grants(t, pool, by(t, strategy, limit), interval); granted < due {
			t.Errorf("%d of %d tokens granted", granted, due)
		}
	})
}

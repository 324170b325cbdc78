package integration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// takeMany takes one token of each key, of a burst of 100 at one per 1000 hours, as
// token_bucket does for many keys at once, but waits for rows as long as it takes. It returns when they were dated.
func takeMany(t *testing.T, pool *pgxpool.Pool, keys ...string) (takenNS int64, err error) {
	t.Helper()
	limit := hours.WithBurst(100)
	err = pool.QueryRow(t.Context(), `select taken_ns from pglimit.token_bucket_take_many($1, array_fill('test'::text, array[$2::int]),
			array_fill($3::bigint, array[$2]), array_fill($4::bigint, array[$2]), array_fill(1::bigint, array[$2]),
			array(select generate_series(1::bigint, $2)), array_fill(1::bigint, array[$2]), array_fill(1::bigint, array[$2]), false, false)`,
		keys, len(keys), int64(limit.Token()), int64(limit.Window()),
	).Scan(&takenNS)
	return takenNS, err
}

// makes begins to make a bucket, in a transaction.
func makes(t *testing.T, pool *pgxpool.Pool, key string) pgx.Tx {
	t.Helper()
	tx := session(t, pool)
	take(t, tx, strategies.TokenBucket{}, key, hours.WithBurst(100))
	return tx
}

// A call that had to wait for a bucket in the making, which came to nothing, is dated
// afterwards, also what it had been granted before. If the bucket is there then, nothing
// is taken.
func TestACallThatWaitedIsDatedAfterwards(t *testing.T) {
	t.Parallel()
	const wait = 50 * time.Millisecond
	t.Run("rolled back", func(t *testing.T) {
		t.Parallel()
		pool := newMigrated(t)
		take(t, pool, strategies.TokenBucket{}, "old", hours.WithBurst(100))
		execute(t, pool, "update pglimit.token_bucket set full_ns = at_ns") // nothing is owed
		maker := makes(t, pool, "in the making")
		var takenNS, overNS int64
		var err error
		whileBlocked(t, pool, func() { takenNS, err = takeMany(t, pool, "in the making", "old") }, func() {
			passes(t, pool, wait)
			overNS = query[int64](t, pool, "select pglimit.clock_ns()")
			if err := maker.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		})
		if err != nil || takenNS < overNS {
			t.Errorf("dated %v before it could go on, %v", time.Duration(overNS-takenNS), err)
		}
		token := int64(hours.Token())
		got := query[string](t, pool, "select string_agg(format('%s %s %s', key, at_ns, full_ns - at_ns), ', ' order by key) from pglimit.token_bucket")
		if want := fmt.Sprintf("in the making %d %d, old %d %d", takenNS, token, takenNS, token); got != want {
			t.Errorf("rows %s, want %s", got, want)
		}
	})
	t.Run("committed", func(t *testing.T) {
		t.Parallel()
		pool := newMigrated(t)
		take(t, pool, strategies.TokenBucket{}, "old", hours.WithBurst(100))
		maker := makes(t, pool, "in the making")
		rows := "select string_agg(b::text, ', ' order by key) from pglimit.token_bucket b"
		before := query[string](t, maker, rows)
		var err error
		whileBlocked(t, pool, func() { _, err = takeMany(t, pool, "in the making", "old") }, func() {
			passes(t, pool, wait)
			commit(t, maker)
		})
		if after := query[string](t, pool, rows); sqlState(err) != "40001" || after != before {
			t.Errorf("%v; the rows were %s, are %s", err, before, after)
		}
	})
}

// Nonsense that only a person sends has an end.
func TestACallForNoKeysEnds(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "set statement_timeout = '5s'; select pglimit.token_bucket_take_many('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', false, false)")
	_, err := pool.Exec(t.Context(), "set statement_timeout = '5s'; select pglimit.token_bucket_take_many(null, null, null, null, null, null, null, null, false, false)")
	if sqlState(err) != "22023" {
		t.Errorf("nulls: %v", err)
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
			limit := hours.WithBurst(100)
			take(t, pool, s, "old", limit)
			if known {
				take(t, pool, s, "stuck", limit)
			}
			holder := session(t, pool)
			take(t, holder, s, "stuck", limit)
			before := query[int64](t, pool, "select sum(full_ns)::bigint from pglimit.token_bucket")

			began := time.Now()
			_, err := s.Take(t.Context(), pool, asks(limit, "new", "old", "stuck"))
			if !errors.Is(err, pglimit.ErrLocked) || !errors.Is(err, pglimit.ErrNothingTaken) {
				t.Errorf("outside a transaction: %v", err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it gave up after %v", took)
			}
			if after := query[int64](t, pool, "select sum(full_ns)::bigint from pglimit.token_bucket"); after != before {
				t.Error("it took something")
			}

			mine := session(t, pool)
			var decisions []pglimit.Decision
			whileBlocked(t, pool, func() { decisions, err = s.Take(t.Context(), mine, asks(limit, "new", "old", "stuck")) }, func() {
				passes(t, pool, time.Second)
				commit(t, holder)
			})
			if err != nil || len(decisions) != 3 || !decisions[2].Allowed {
				t.Errorf("in a transaction: %+v, %v", decisions, err)
			}
		})
	}
}

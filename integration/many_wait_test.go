package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/strategies"
)

// takeMany takes one token of each key, of a burst of 100 at one per hour, as
// token_bucket does for many keys at once. It returns when each was dated.
func takeMany(t *testing.T, pool *pgxpool.Pool, keys ...string) (datesUS []int64, err error) {
	t.Helper()
	var numbers, ones []int64
	for i := range keys {
		numbers, ones = append(numbers, int64(i+1)), append(ones, 1)
	}
	err = pool.QueryRow(t.Context(),
		"select ats_us from pglimit.token_bucket_take_many_v2($1, $2, $3, $3, 'test', 3600000000, 1, 100, false)", keys, numbers, ones,
	).Scan(&datesUS)
	return datesUS, err
}

// makes begins to make the buckets, each in a transaction of its own.
func makes(t *testing.T, pool *pgxpool.Pool, keys ...string) (makers []pgx.Tx) {
	t.Helper()
	for _, key := range keys {
		tx := session(t, pool)
		execute(t, tx, "select pglimit.token_bucket_take_v2($1, 'test', 3600000000, 1, 100, 1, false)", key)
		makers = append(makers, tx)
	}
	return makers
}

// A call that had to wait is dated afterwards, also what it had been granted before.
func TestACallThatWaitedIsDatedAfterwards(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, pgx.Tx) error{
		"for a key that is there then":     func(t *testing.T, tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"for a key that is not there then": func(t *testing.T, tx pgx.Tx) error { return tx.Rollback(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			for i := range 20 { // it waits for 100 ms at most: not on every machine long enough
				old, inTheMaking := fmt.Sprint("a", i), fmt.Sprint("b", i)
				if _, err := takeMany(t, pool, old); err != nil {
					t.Fatal(err)
				}
				maker := makes(t, pool, inTheMaking)[0]
				var dates []int64
				var err error
				whileBlocked(t, pool, func() { dates, err = takeMany(t, pool, old, inTheMaking) }, func() {
					passes(t, pool, 50*time.Millisecond)
					if err := end(t, maker); err != nil {
						t.Error(err)
					}
				})
				if sqlState(err) == "55P03" {
					continue
				}
				if err != nil || len(dates) != 2 || dates[0] != dates[1] {
					t.Errorf("dated %d, %v", dates, err)
				}
				return
			}
			t.Error("it never had the patience")
		})
	}
}

// Of many keys in the making, it does not wait for each for as long as for one: while it
// waits it holds rows, out of order, and somebody's deadlock_timeout may be over.
func TestACallHasPatienceForAllNewKeysTogether(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	var keys []string
	for i := range 14 {
		keys = append(keys, fmt.Sprintf("n%02d", i))
	}
	makers := makes(t, pool, keys...)
	var err error
	var took time.Duration
	whileBlocked(t, pool, func() {
		began := time.Now()
		_, err = takeMany(t, pool, keys...)
		took = time.Since(began)
	}, func() {
		for _, maker := range makers {
			passes(t, pool, 70*time.Millisecond)
			if err := maker.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if sqlState(err) != "55P03" {
		t.Errorf("%v after %v", err, took)
	}
}

// Nonsense that only a person sends has an end.
func TestACallForNoKeysEnds(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "set statement_timeout = '5s'; select pglimit.token_bucket_take_many_v2('{}', '{}', '{}', '{}', 'test', 1, 1, 1, false)")
	execute(t, pool, "set statement_timeout = '5s'; select pglimit.token_bucket_take_many_v2(null, null, null, null, 'test', 1, 1, 1, false)")
}

// A call that needs a bucket which another transaction is making waits for it, as one for
// that bucket alone does, however long it takes.
func TestACallWaitsForABucketInTheMaking(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(100)
	take(t, pool, s, "old", limit)
	holder := session(t, pool)
	take(t, holder, s, "new", limit)
	done := call(t, pool, asks(limit, "new", "old"))
	passes(t, pool, 3*time.Second)
	commit(t, holder)
	<-done
}

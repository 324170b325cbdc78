package integration

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// How programs in other languages call pglimit.allow: in a transaction, from a function, in a
// trigger, on a replica.

func remaining(t *testing.T, db database, key string) int64 {
	t.Helper()
	return query[int64](t, db, "select remaining from pglimit.peek('api', $1, '1/1h burst 5')", key)
}

// A caller who calls it with "select (f()).*" asks for each column. In FROM it is one decision.
func TestSQLAllowInFromIsOneDecision(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select *, allowed, (a).remaining, a from pglimit.allow('api', 'k', '1/1h burst 5') a")
	if n := remaining(t, pool, "k"); n != 4 {
		t.Errorf("%d tokens are left, want 4", n)
	}
}

// Names come from columns of any text type and any collation.
func TestSQLFunctionsTakeNamesOfAnyCollation(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `
		create collation any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create table users (name text collate any_case, short varchar(10) collate "POSIX", "limit" text collate any_case);
		insert into users values ('Ann', 'Ann', '1/1h burst 5')`)
	execute(t, pool, "select from pglimit.allow('api', 'other', '1/1h burst 5')") // a row to compare with
	for _, column := range []string{"name", "short", "name::name", "name collate \"C\""} {
		execute(t, pool, `select pglimit.reset('api', `+column+`) from users`)
		for _, call := range []string{"allow", "peek"} {
			if n := query[int64](t, pool, `select remaining from users, pglimit.`+call+`('api', `+column+`, "limit")`); n != 4 {
				t.Errorf("%s of %s: %d are left", call, column, n)
			}
		}
	}
	if n := remaining(t, pool, "ann"); n != 5 {
		t.Errorf("the key ann is another, and has %d", n)
	}
}

// At REPEATABLE READ a decision that another call has overtaken fails. It is never over.
func TestSQLAllowAtRepeatableReadIsNeverOver(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, first := range []bool{true, false} {
		key := map[bool]string{true: "new", false: "old"}[first]
		if !first {
			query[bool](t, pool, "select allowed from pglimit.allow('api', $1, '1/1h burst 5', 3)", key)
		}
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		must(t, err)
		query[int64](t, tx, "select remaining from pglimit.peek('api', $1, '1/1h burst 5')", key) // its snapshot
		query[bool](t, pool, "select allowed from pglimit.allow('api', $1, '1/1h burst 5', 2)", key)
		_, err = tx.Exec(t.Context(), "select from pglimit.allow('api', $1, '1/1h burst 5', 2)", key)
		wantCode(t, err, "40001")
		must(t, tx.Rollback(t.Context()))
	}
}

// The commit may be relaxed by the statement that asks, as in a Go Limiter.
func TestSQLAllowRelaxedByItsStatement(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	tx := begin(t, pool)
	execute(t, tx, "set local synchronous_commit = on")
	query[bool](t, tx, "select allowed from pglimit.allow('api', 'k', '1/1h')")
	if got := query[string](t, tx, "show synchronous_commit"); got != "on" {
		t.Errorf("pglimit.allow left synchronous_commit %s", got)
	}
	execute(t, tx, "select d.*, set_config('synchronous_commit', 'off', true) from pglimit.allow('api', 'k', '1/1h') d")
	if got := query[string](t, tx, "show synchronous_commit"); got != "off" {
		t.Errorf("synchronous_commit is %s", got)
	}
}

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

package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A denial writes nothing: no row lock, no transaction id, no WAL, no dead tuple.
// (Trap B: ON CONFLICT DO UPDATE ... WHERE false locks the row all the same.)
//
// The WAL position and transaction ids are the server's, so this test is not
// parallel. The denials go in rounds: what a denial writes is written in every
// round; what the server does by itself, in a few. On a busy machine autovacuum may
// take several rounds, of more.
func TestDenialWritesNothing(t *testing.T) {
	const rounds, denials = 8, 15
	type position struct{ wal, xids int64 }
	at := func(pool *pgxpool.Pool) position {
		return position{
			query[int64](t, pool, "select (pg_current_wal_insert_lsn() - '0/0')::bigint"),
			query[int64](t, pool, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"),
		}
	}
	writes := func(t *testing.T, pool *pgxpool.Pool, deny func()) (busy, of int) {
		t.Helper()
		execute(t, pool, "checkpoint")
		for ; of < rounds || busy > of/4 && of < 4*rounds; of++ {
			before := at(pool)
			for range denials {
				deny()
			}
			if after := at(pool); after != before {
				busy++
				t.Logf("%d denials: %d bytes of WAL, %d transaction ids", denials, after.wal-before.wal, after.xids-before.xids)
			}
		}
		return busy, of
	}

	t.Run("faulty", func(t *testing.T) {
		pool, take := faulty(t, `insert into naive as n values ($1, 0, now())
			on conflict (key) do update set tokens = n.tokens - 1 where n.tokens >= 1
			returning true`)
		take.must(t, pool, "k")
		if busy, of := writes(t, pool, func() { take.must(t, pool, "k") }); busy < of {
			t.Errorf("the fault was found in %d of %d rounds", busy, of)
		}
	})
	named := map[string]strategies.Strategy{"pglimit.allow": viaSQL{}}
	for _, strategy := range strategies.All() {
		named[strategy.Name()] = strategy
	}
	pool := newMigrated(t)
	for key, strategy := range named {
		t.Run(key, func(t *testing.T) {
			deny := by(t, strategy, hours)
			if !deny.must(t, pool, key) {
				t.Fatal("the first was denied")
			}
			row := fmt.Sprintf("select string_agg(format('%%s %%s %%s', ctid, xmin, xmax), ',') from pglimit.%s", strategy.Name())
			before := query[string](t, pool, row)
			busy, of := writes(t, pool, func() {
				if deny.must(t, pool, key) {
					t.Fatal("allowed")
				}
			})
			if busy > of/4 {
				t.Errorf("something was written in %d of %d rounds", busy, of)
			}
			// xmax is where a row lock is kept; ctid and xmin change with an update.
			if after := query[string](t, pool, row); after != before {
				t.Errorf("the row was %s, is %s", before, after)
			}
		})
	}
	t.Run("a group, one of whose buckets has enough", func(t *testing.T) {
		group := append(asks(hours.WithBurst(100), "enough"), asks(hours, "taken")...)
		takeGroups(t, pool, group)
		busy, of := writes(t, pool, func() {
			if takeGroups(t, pool, group)[1].Allowed {
				t.Fatal("allowed")
			}
		})
		if busy > of/4 {
			t.Errorf("something was written in %d of %d rounds", busy, of)
		}
	})
}

// token_bucket answers peeks and denials in read-only transactions, so on a standby
// too; the others send statements that could write, which Postgres refuses there.
func TestTokenBucketDeniesReadOnly(t *testing.T) {
	t.Parallel()
	pool, strategy := newMigrated(t), strategies.TokenBucket{}
	burst := hours.WithBurst(10)
	take(t, pool, strategy, "taken", hours)
	take(t, pool, strategy, "spare", burst)
	take(t, pool, strategy, "spare 2", burst)
	take(t, pool, strategy, "ahead", hours) // a row that is ahead of the standby's clock
	execute(t, pool, "update pglimit.token_bucket set at_ns = at_ns + 60000000000, full_ns = full_ns + 60000000000 where key = 'ahead'")
	tx := begin(t, pool)
	execute(t, tx, "set transaction read only")
	execute(t, pool, "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$")
	standby := newPool(t, databaseURL(pool), 4)
	for name, db := range map[string]database{"in a transaction": tx, "outside": standby} {
		ask := func(tokens int64, keys ...string) ([]pglimit.Decision, error) {
			var requests []pglimit.Request
			for _, key := range keys {
				requests = append(requests, pglimit.Request{Limiter: "test", Key: key, Limit: hours, Tokens: tokens, Unit: 1})
			}
			return strategy.Take(t.Context(), on(db), requests)
		}
		for _, keys := range [][]string{{"taken"}, {"new"}, {"taken", "new", "newer"}} {
			decisions, err := ask(0, keys...)
			if err != nil {
				t.Fatalf("%s, peeks at %v: %v", name, keys, err)
			}
			for i, d := range decisions {
				if d.Allowed != (keys[i] != "taken") {
					t.Errorf("%s, a peek at %s of %v: allowed %v", name, keys[i], keys, d.Allowed)
				}
			}
		}
		for _, keys := range [][]string{{"taken"}, {"taken", "taken"}, {"ahead"}, {"ahead", "taken"}} {
			decisions, err := ask(1, keys...)
			if err != nil {
				t.Fatalf("%s, %v: %v", name, keys, err)
			}
			for _, d := range decisions {
				if d.Allowed {
					t.Errorf("%s, %v: allowed", name, keys)
				}
			}
		}
	}
	once := pglimit.Request{Limiter: "test", Key: "ahead", Limit: hours, Tokens: 1, Unit: 1, ID: "1", IDTTL: time.Minute}
	if decisions, err := strategy.Take(t.Context(), on(standby), []pglimit.Request{once}); err != nil || decisions[0].Allowed {
		t.Errorf("with an ID: %+v, %v", decisions, err)
	}
	if allowText(t, standby, "ahead", "1/1000h", 1) {
		t.Error("allow: allowed")
	}
	// What could be granted is an error there, whichever way it goes.
	for _, keys := range [][]string{{"new"}, {"taken", "new"}, {"spare"}, {"spare", "spare"}, {"spare", "spare 2"}} {
		var requests []pglimit.Request
		for _, key := range keys {
			requests = append(requests, pglimit.Request{Limiter: "test", Key: key, Limit: burst, Tokens: 2, Unit: 1})
		}
		if _, err := strategy.Take(t.Context(), on(standby), requests); sqlState(err) != "25006" {
			t.Errorf("%v: %v", keys, err)
		}
	}
}

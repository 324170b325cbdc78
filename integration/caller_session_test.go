package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// callersTransactions are the ways to hand a strategy a transaction of the caller's.
var callersTransactions = map[string]func(t *testing.T, pool *pgxpool.Pool) pglimit.DB{
	"pgx.Tx": func(t *testing.T, pool *pgxpool.Pool) pglimit.DB { return session(t, pool) },
	"pgx.Conn": func(t *testing.T, pool *pgxpool.Pool) pglimit.DB {
		conn, err := pgx.Connect(t.Context(), databaseURL(pool))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		execute(t, conn, "begin")
		return conn
	},
	"pgxpool.Conn": func(t *testing.T, pool *pgxpool.Pool) pglimit.DB {
		conn, err := newPool(t, databaseURL(pool), 1).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		execute(t, conn, "begin")
		return conn
	},
}

// Whatever is done in the caller's transaction leaves the settings of that transaction
// alone, does not end it, and goes with it.
func TestTheCallersTransactionIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	const settings = "select current_setting('synchronous_commit') || ' ' || current_setting('lock_timeout') || ' ' || current_setting('search_path') || ' ' || txid_current()"
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) {
		for name, begin := range callersTransactions {
			t.Run(name, func(t *testing.T) {
				limit := hours.WithBurst(1)
				if strategy.Check(limit.WithBurst(10)) == nil {
					limit.Burst = 10
				}
				one := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1}
				take(t, pool, strategy, "gone", pglimit.Every(time.Second))
				age(t, pool, strategy, time.Hour)
				db := begin(t, pool)
				before := query[string](t, db, settings)
				_, err := strategy.Take(t.Context(), db, []pglimit.Request{one})
				for range 5 {
					if sqlState(err) != "40001" { // it took long, on a busy machine
						break
					}
					execute(t, db, "rollback")
					db = begin(t, pool)
					before = query[string](t, db, settings)
					_, err = strategy.Take(t.Context(), db, []pglimit.Request{one})
				}
				if err == nil {
					err = strategy.Reset(t.Context(), db, "test", "k")
				}
				if err != nil {
					t.Fatal(err)
				}
				check := func(what string, err error) {
					t.Helper()
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					if after := query[string](t, db, settings); after != before {
						t.Errorf("after %s: settings and transaction were %s, are %s", what, before, after)
					}
				}
				decisions, err := strategy.Take(t.Context(), db, []pglimit.Request{one})
				check("a take", err)
				_, err = strategy.Take(t.Context(), db, asks(limit, "c", "a", "b"))
				check("a take of many", err)
				check("a refund", strategy.GiveBack(t.Context(), db, []pglimit.Refund{{Request: one, At: decisions[0].At}}))
				swept, err := strategy.Sweep(t.Context(), db, 0, 1_000_000)
				check("a sweep", err)
				if swept.Removed != 1 {
					t.Errorf("%d rows were swept, want 1", swept.Removed)
				}
				check("a reset", strategy.Reset(t.Context(), db, "test", "a"))
				if leaser, able := strategy.(pglimit.Leaser); able {
					_, err := leaser.Lease(t.Context(), db, pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Share: 1, TTL: time.Second})
					check("a lease", err)
				}
				execute(t, db, "rollback")
				left := query[string](t, pool, "select coalesce(string_agg(key, ' '), '') from pglimit."+strategy.Name())
				if left != "gone" {
					t.Errorf("rolled back, the rows of %q are there", left)
				}
				if err := strategy.Reset(t.Context(), pool, "test", "gone"); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// On a connection that is in no transaction, a call of many is one statement, or ends the
// transaction that it began; and does not wait for a locked row.
func TestACallOnAConnectionIsATransactionOfItsOwn(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) {
		for _, name := range []string{"pgx.Conn", "pgxpool.Conn"} {
			t.Run(name, func(t *testing.T) {
				db := callersTransactions[name](t, pool)
				execute(t, db, "rollback")
				if _, err := strategy.Take(t.Context(), db, asks(hours, name+" b", name+" a")); err != nil {
					t.Fatal(err)
				}
				for _, key := range []string{" a", " b"} {
					if take(t, pool, strategy, name+key, hours).Allowed {
						t.Errorf("%s: what was taken is not there for others", key)
					}
				}
				if n := query[string](t, db, "select current_setting('synchronous_commit') || current_setting('lock_timeout')"); n != "on0" {
					t.Errorf("settings %s are left", n)
				}
				if strategy.Name() == "for_update_nowait" {
					return
				}
				holder := session(t, pool)
				take(t, holder, strategy, name+" c", hours)
				if _, err := strategy.Take(soon(t, 20*time.Second), db, asks(hours, name+" c", name+" d")); !errors.Is(err, pglimit.ErrLocked) {
					t.Errorf("%v: want ErrLocked", err)
				}
				commit(t, holder)
			})
		}
	})
}

// Where the schema or a function is missing, the error says what to do.
func TestWhatIsMissingIsNotMigrated(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]string{
		"schema":   "drop schema pglimit cascade",
		"function": "drop function pglimit.clock_ns cascade; drop function if exists pglimit.token_bucket_take, pglimit.read_full_ns",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) {
				execute(t, pool, drop)
				for tokens := range int64(2) {
					ask := asks(hours, "k")
					ask[0].Tokens = tokens
					if _, err := strategy.Take(t.Context(), pool, ask); !errors.Is(err, pglimit.ErrNotMigrated) {
						t.Errorf("%d tokens: %v", tokens, err)
					}
				}
			})
		})
	}
}

// The view says of each bucket what a peek does: tokens that are owed or leased are those
// that do not remain.
func TestTheViewAgreesWithAPeek(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) {
		limit := pglimit.Every(time.Hour).WithBurst(100)
		if strategy.Check(limit) != nil {
			t.Skip("it has a view of its own, and one token")
		}
		agree := func(what string, limit pglimit.Limit) {
			t.Helper()
			d, err := strategy.Take(t.Context(), pool, []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Unit: 1}})
			if err != nil {
				t.Fatal(err)
			}
			missing := query[int64](t, pool, "select tokens_owed + tokens_leased from pglimit.buckets where strategy = $1 and limiter = 'test' and key = 'k'", strategy.Name())
			if missing != limit.Burst-d[0].Remaining {
				t.Errorf("%s: %d tokens are missing as the view has it, %d as a peek has it", what, missing, limit.Burst-d[0].Remaining)
			}
			in := query[float64](t, pool, "select extract(epoch from full_at - $2)::float8 from pglimit.buckets where strategy = $1", strategy.Name(), d[0].At)
			if off := in - d[0].ResetAfter.Seconds(); d[0].ResetAfter > 0 && missing > 0 && (off > 1 || off < -1) && what != "a lease" {
				t.Errorf("%s: full in %v as the view has it, in %v as a peek has it", what, in, d[0].ResetAfter)
			}
		}
		for range 7 {
			take(t, pool, strategy, "k", limit)
		}
		agree("takes", limit)
		age(t, pool, strategy, 90*time.Minute)
		agree("after 90 minutes", limit)
		age(t, pool, strategy, -24*time.Hour)
		agree("the clock stepped back", limit)
		take(t, pool, strategy, "k", limit)
		if s, able := strategy.(strategies.TokenBucket); able {
			if _, err := s.Lease(t.Context(), pool, pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Share: 1, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
			agree("a lease", limit)
			age(t, pool, strategy, 61*time.Minute)
			agree("an expired lease", limit)
		}
		age(t, pool, strategy, 1000*time.Hour)
		agree("full", limit)
	})
}

// A bucket that has been full for a minute is swept, one that has been for two seconds less
// is not.
func TestSweepsMarginToTheSecond(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy pglimit.Strategy) {
		for _, key := range []string{"young", "old"} {
			take(t, pool, strategy, key, pglimit.Every(time.Second))
		}
		column := "full_ns = pglimit.clock_ns() - $1::bigint * 1000000000"
		if strategy.Name() == "exclusion_range" {
			column = "during = tstzrange(clock_timestamp() - interval '1 hour', clock_timestamp() - $1::bigint * interval '1 second')"
		}
		set := "update pglimit." + strategy.Name() + " set " + column + " where key = $2"
		execute(t, pool, set, 60, "old")
		// In the statement's own transaction no time passes that a busy machine could stretch.
		for tries := 0; ; tries++ {
			began := time.Now()
			execute(t, pool, set, 58, "young")
			n := sweepOnce(t, pool, strategy)
			if time.Since(began) > 2*time.Second && tries < 20 {
				take(t, pool, strategy, "young", pglimit.Every(time.Second))
				continue
			}
			if n != 1 {
				t.Errorf("%d were removed, want the one that has been full for a minute", n)
			}
			return
		}
	})
}

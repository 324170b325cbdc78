package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// callersTransactions are the ways to hand a strategy a transaction of the caller's.
var callersTransactions = map[string]func(t *testing.T, pool *pgxpool.Pool) database{
	"pgx.Tx": func(t *testing.T, pool *pgxpool.Pool) database { return begin(t, pool) },
	"pgx.Conn": func(t *testing.T, pool *pgxpool.Pool) database {
		conn, err := pgx.Connect(t.Context(), databaseURL(pool))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		execute(t, conn, "begin")
		return conn
	},
	"pgxpool.Conn": func(t *testing.T, pool *pgxpool.Pool) database {
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
	const settings = "select string_agg(name || '=' || setting, E'\n') || E'\ntransaction=' || txid_current() from pg_settings"
	// Set by the caller, so that going back to the defaults shows too. The block is for the
	// settings of plpgsql, which are there once it has been used.
	const begun = "set local synchronous_commit = local; set local lock_timeout = 54321; set local statement_timeout = 65432; set local search_path = nowhere; do 'begin end'"
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		for name, begin := range callersTransactions {
			t.Run(name, func(t *testing.T) {
				limit := hours.WithBurst(1)
				if strategy.Check(&pglimit.Request{Limit: limit.WithBurst(10)}) == nil {
					limit.Burst = 10
				}
				// Relaxed and impatient: what changes settings in a transaction of our own.
				one := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1, Durability: pglimit.Relaxed, Impatient: true}
				many := asks(limit, "c", "a", "b")
				take(t, pool, strategy, "gone", pglimit.Every(time.Second))
				age(t, pool, strategy, time.Hour)
				db := begin(t, pool)
				execute(t, db, begun)
				before := query[string](t, db, settings)
				_, err := strategy.Take(t.Context(), on(db), []pglimit.Request{one})
				if err == nil {
					err = strategy.Reset(t.Context(), on(db), "test", "k")
				}
				if err != nil {
					t.Fatal(err)
				}
				check := func(what string, err error) {
					t.Helper()
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					diff(t, "settings and transaction after "+what, strings.Split(before, "\n"), strings.Split(query[string](t, db, settings), "\n"))
				}
				decisions, err := strategy.Take(t.Context(), on(db), []pglimit.Request{one})
				check("a take", err)
				several, err := strategy.Take(t.Context(), on(db), many)
				check("a take of many", err)
				check("a refund", strategy.GiveBack(t.Context(), on(db), []pglimit.Refund{{Request: one, At: decisions[0].At}}))
				var refunds []pglimit.Refund
				for i, r := range many {
					refunds = append(refunds, pglimit.Refund{Request: r, At: several[i].At})
				}
				check("several refunds", strategy.GiveBack(t.Context(), on(db), refunds))
				swept, err := strategy.Sweep(t.Context(), on(db), 0, 1_000_000)
				check("a sweep", err)
				if swept.Removed != 1 {
					t.Errorf("%d rows were swept, want 1", swept.Removed)
				}
				check("a reset", strategy.Reset(t.Context(), on(db), "test", "a"))
				if leaser, able := strategy.(pglimit.Leaser); able {
					lease, err := leaser.Lease(t.Context(), on(db), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 2, Share: 1, TTL: time.Minute})
					check("a lease", err)
					_, err = leaser.Lease(t.Context(), on(db), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Share: 1, TTL: time.Minute, Settle: lease, Spent: 1})
					check("a lease's end", err)
				}
				if all, able := strategy.(pglimit.AllResetter); able {
					_, err := all.ResetAll(t.Context(), on(db), "test")
					check("a reset of all", err)
				}
				execute(t, db, "rollback")
				left := query[string](t, pool, "select coalesce(string_agg(key, ' '), '') from pglimit."+strategy.Name())
				if left != "gone" {
					t.Errorf("rolled back, the rows of %q are there", left)
				}
				if err := strategy.Reset(t.Context(), on(pool), "test", "gone"); err != nil {
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
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		for _, name := range []string{"pgx.Conn", "pgxpool.Conn"} {
			t.Run(name, func(t *testing.T) {
				db := callersTransactions[name](t, pool)
				execute(t, db, "rollback")
				takeAll(t, db, strategy, asks(hours, name+" b", name+" a")...)
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
				holder := begin(t, pool)
				take(t, holder, strategy, name+" c", hours)
				if _, err := strategy.Take(soon(t, time.Minute), on(db), asks(hours, name+" c", name+" d")); !errors.Is(err, pglimit.ErrLocked) {
					t.Errorf("%v: want ErrLocked", err)
				}
				commit(t, holder)
			})
		}
	})
}

// Where the schema or a function is missing, the error says what to do, whatever was asked.
func TestWhatIsMissingIsNotMigrated(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, _ *pgxpool.Pool, strategy strategies.Strategy) {
		pool := newMigrated(t)
		granted := take(t, pool, strategy, "k", hours)
		for _, missing := range []struct{ what, drop string }{
			// Of a release that is older than the program.
			{"new functions", "drop function pglimit.token_bucket_take_many, pglimit.token_bucket_lease, pglimit.clock_ns, pglimit.time_of cascade"},
			{"functions", "drop function if exists pglimit.token_bucket_take, pglimit.read_full_ns"},
			{"schema", "drop schema pglimit cascade"},
		} {
			execute(t, pool, missing.drop)
			check := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, pglimit.ErrNotMigrated) {
					t.Errorf("%s, without the %s: %v", what, missing.what, err)
				}
			}
			one := asks(hours, "k")
			_, err := strategy.Take(t.Context(), on(pool), one)
			check("a take", err)
			_, err = strategy.Take(t.Context(), on(pool), asks(hours, "k", "l"))
			check("a take of many", err)
			if err = strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: one[0], At: granted.At}}); err != nil || strategy.Rule() == (strategies.TokenBucket{}).Rule() || missing.what == "schema" {
				check("a refund", err) // that of another rule needs no function
			}
			_, err = strategy.Sweep(t.Context(), on(pool), 0, 100)
			check("a sweep", err)
			if leaser, able := strategy.(pglimit.Leaser); able {
				_, err = leaser.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: hours, Tokens: 1, Share: 1, TTL: time.Second})
				check("a lease", err)
			}
			if missing.what == "schema" { // they use no function
				check("a reset", strategy.Reset(t.Context(), on(pool), "test", "k"))
				_, err = strategy.(pglimit.AllResetter).ResetAll(t.Context(), on(pool), "test")
				check("a reset of all", err)
			}
			one[0].Tokens = 0
			_, err = strategy.Take(t.Context(), on(pool), one)
			check("a peek", err)
		}
	})
}

// The view says of each bucket what a peek does: tokens that are owed or leased are those
// that do not remain.
func TestTheViewAgreesWithAPeek(t *testing.T) {
	t.Parallel()
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour).WithBurst(100)
		view := "select tokens_owed + tokens_leased, full_at, last_taken_at from pglimit.buckets where strategy = $1 and limiter = 'test' and key = 'k' and seconds_per_token = 3600"
		if strategy.Check(&pglimit.Request{Limit: limit}) != nil {
			limit.Burst = 1
			view = "select 1 - available::int::bigint, full_at, last_taken_at from pglimit.ranges where $1 <> '' and limiter = 'test' and key = 'k'"
		}
		// Beside it are buckets that are none of its business.
		for _, s := range strategies.All() {
			take(t, pool, s, "k", pglimit.Every(24*time.Hour))
			take(t, pool, s, "l", hours)
			if err := s.Reset(t.Context(), on(pool), "test", "k"); s.Name() == strategy.Name() && err != nil {
				t.Fatal(err)
			}
		}
		agree := func(what string, taken time.Time) {
			t.Helper()
			d, err := strategy.Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Unit: 1}})
			if err != nil {
				t.Fatal(err)
			}
			var missing int64
			var fullAt, takenAt time.Time
			if err := pool.QueryRow(t.Context(), view, strategy.Name()).Scan(&missing, &fullAt, &takenAt); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if missing != limit.Burst-d[0].Remaining {
				t.Errorf("%s: %d tokens are missing as the view has it, %d as a peek has it", what, missing, limit.Burst-d[0].Remaining)
			}
			const off = time.Minute // the machine may be busy between the two
			in := fullAt.Sub(d[0].At)
			if d[0].ResetAfter == 0 && in > 0 || d[0].ResetAfter > 0 && (in-d[0].ResetAfter).Abs() > off {
				t.Errorf("%s: full in %v as the view has it, in %v as a peek has it", what, in, d[0].ResetAfter)
			}
			if takenAt.Sub(taken).Abs() > off {
				t.Errorf("%s: last taken at %v as the view has it, it was at %v", what, takenAt, taken)
			}
		}
		var last pglimit.Decision
		for range min(7, limit.Burst) {
			last = take(t, pool, strategy, "k", limit)
		}
		agree("takes", last.At)
		by := 90 * time.Minute
		age(t, pool, strategy, by)
		agree("after 90 minutes", last.At.Add(-by))
		last = take(t, pool, strategy, "k", limit)
		age(t, pool, strategy, -24*time.Hour)
		agree("the clock stepped back", last.At.Add(24*time.Hour))
		last = take(t, pool, strategy, "k", limit)
		if s, able := strategy.(strategies.TokenBucket); able {
			lease, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Share: 1, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			last.At = lease.At
			agree("a lease", last.At)
			age(t, pool, strategy, 61*time.Minute)
			last.At = last.At.Add(-61 * time.Minute)
			agree("an expired lease", last.At)
		}
		age(t, pool, strategy, 1000*time.Hour)
		agree("full", last.At.Add(-1000*time.Hour))
		if s, able := strategy.(strategies.TokenBucket); able {
			lease, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Share: 1, TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			agree("a lease of a full bucket", lease.At)
		}
	})
}

// A bucket that has been full for a minute is swept, one that has been for a microsecond less is not.
func TestSweepsMarginToTheMicrosecond(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		execute(t, pool, stoppedClock)
		column := "full_ns = pglimit.clock_ns() - $1::bigint * 1000"
		if strategy.Name() == "exclusion_range" {
			column = "during = tstzrange(pglimit.time_of(pglimit.clock_ns()) - interval '1 hour', pglimit.time_of(pglimit.clock_ns() - $1::bigint * 1000))"
		}
		for key, us := range map[string]int64{"young": 59_999_999, "old": 60_000_000} {
			take(t, pool, strategy, key, pglimit.Every(time.Second))
			execute(t, pool, "update pglimit."+strategy.Name()+" set "+column+" where key = $2", us, key)
		}
		sweepOnce(t, pool, strategy)
		if left := query[string](t, pool, "select string_agg(key, ' ') from pglimit."+strategy.Name()); left != "young" {
			t.Errorf("the rows of %q are left, want the one that has been full for less than a minute", left)
		}
	})
}

// What a limiter takes in the caller's transaction is charged if that commits, for all
// strategies and with all stages on around it.
func TestInTheCallersTransactionItIsChargedIfThatCommits(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test", Limit: pglimit.Every(time.Hour)})
		defer func() { must(t, limiter.Close(context.WithoutCancel(t.Context()))) }()
		for _, commits := range []bool{false, true} {
			tx := begin(t, pool)
			d, err := limiter.On(pglimit.InTx(tx)).Allow(t.Context(), "k")
			if err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			if again, err := limiter.On(pglimit.InTx(tx)).Allow(t.Context(), "k"); err != nil || again.Allowed {
				t.Errorf("twice: %+v, %v", again, err)
			}
			if commits {
				commit(t, tx)
			} else {
				must(t, tx.Rollback(t.Context()))
			}
			if after, err := limiter.Peek(t.Context(), "k"); err != nil || after.Allowed == commits {
				t.Errorf("it committed: %v; then %+v, %v", commits, after, err)
			}
		}
	})
}

// The same on a connection of the caller's, where a transaction was begun by hand: what is
// taken in it goes with it, and each request is a round trip of its own. Nothing of it is
// remembered or leased, however busy the key is. Outside of a transaction it is charged at once.
func TestOnTheCallersConnectionItIsChargedIfThatCommits(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := inParts(strategy, hours.WithBurst(100))
		_, leases := strategy.(pglimit.Leaser)
		limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test", Limit: limit, Leases: pglimit.Leases{On: leases}})
		defer func() { must(t, limiter.Close(context.WithoutCancel(t.Context()))) }()
		conn, err := pgx.Connect(t.Context(), databaseURL(pool))
		must(t, err)
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		for _, end := range []string{"rollback", "commit", "select 1"} {
			key := "until " + end
			if end != "select 1" {
				execute(t, conn, "begin")
			}
			before := limiter.Stats()
			const takes = 12 // more than make a key busy
			for i := range int64(takes) {
				d, err := limiter.On(pglimit.OnConn(conn)).Allow(t.Context(), key)
				if err != nil || d.Allowed != (i < limit.Burst) || d.Source != pglimit.FromDatabase {
					t.Fatalf("take %d until %s: %+v, %v", i, end, d, err)
				}
			}
			stats := limiter.Stats().Since(before)
			if stats.RoundTrips != takes || stats.LeaseTrips != 0 {
				t.Errorf("until %s: %+v", end, stats)
			}
			execute(t, conn, end)
			left := limit.Burst - min(limit.Burst, takes)
			if end == "rollback" {
				left = limit.Burst
			}
			after, err := limiter.Peek(t.Context(), key)
			if err != nil || after.Remaining != left {
				t.Errorf("after %s: %+v, %v; want %d left", end, after, err, left)
			}
			// The limiter itself, which does remember, has not learned what was denied there.
			if d, err := limiter.Allow(t.Context(), key); err != nil || d.Allowed != (left > 0) {
				t.Errorf("after %s: %+v, %v", end, d, err)
			}
		}
	})
}

func TestSQLWithoutTheTableOfLimitsIsNotMigrated(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	run(t, pool, "drop table pglimit.limits cascade")
	for _, call := range []string{"allow('api', 'k')", "peek('api', 'k')", "acquire('job', 'k')"} {
		_, err := pool.Exec(t.Context(), "select pglimit."+call)
		wantCode(t, err, "42883") // the function that reads the table went with it
		if !strings.Contains(fmt.Sprint(err), "pglimit.limits_for") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

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
		if strategy.Check(&rate.Request{Limit: limit}) != nil {
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
			d, err := strategy.Take(t.Context(), on(pool), []rate.Request{{Limiter: "test", Key: "k", Limit: limit, Unit: 1}})
			must(t, err)
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
			must(t, err)
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
			must(t, err)
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

func TestSQLWithoutTheTableOfLimitsIsNotMigrated(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "drop table pglimit.limits cascade")
	for _, call := range []string{"allow('api', 'k')", "peek('api', 'k')", "acquire('job', 'k')"} {
		_, err := pool.Exec(t.Context(), "select pglimit."+call)
		wantCode(t, err, "42883") // the function that reads the table went with it
		if !strings.Contains(fmt.Sprint(err), "pglimit.limits_for") {
			t.Errorf("%s: %v", call, err)
		}
	}
}

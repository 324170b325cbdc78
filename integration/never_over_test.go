package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// stoppedClock stands still until the test moves it: what is granted is known to the token.
// (Its table has an index because pglimit's functions dislike sequential scans.)
const stoppedClock = `
	create table if not exists public.clock (id int primary key, now_ns bigint);
	insert into public.clock values (1, 1800000000000000000) on conflict (id) do update set now_ns = excluded.now_ns;
	create or replace function pglimit.clock_ns() returns bigint
	language sql volatile
	return (select now_ns from public.clock where id = 1)`

func moveClock(t *testing.T, pool *pgxpool.Pool, by time.Duration) {
	t.Helper()
	execute(t, pool, "update public.clock set now_ns = now_ns + $1", by.Nanoseconds())
}

func ask(key string, limit pglimit.Limit, tokens, unit int64) pglimit.Request {
	return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

// One call asks for the same key of two limiters. Each has a bucket of its own, whether the
// call makes it or finds it.
func TestTwoLimitersInOneCallAreTwoBuckets(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		execute(t, pool, stoppedClock)
		limit := inParts(strategy, hours.WithBurst(3))
		both := []pglimit.Request{ask("k", limit, 1, 1), ask("k", limit, 1, 1)}
		both[0].Limiter, both[1].Limiter = "a", "b"
		for left := limit.Burst - 1; left >= 0; left-- {
			for i, d := range takeAll(t, pool, strategy, both...) {
				if d.Granted != 1 || d.Remaining != left {
					t.Errorf("%s granted %d and has %d, want 1 and %d", both[i].Limiter, d.Granted, d.Remaining, left)
				}
			}
		}
		for i, d := range takeAll(t, pool, strategy, both...) {
			if d.Granted != 0 {
				t.Errorf("%s granted %d of nothing", both[i].Limiter, d.Granted)
			}
		}
	})
}

// A row may be ahead of the clock by less than a step: somebody read the clock first and
// reached the row last. Whoever writes it then does not set it back, and what it owes is
// owed from its own time on.
func TestARowALittleAheadIsNotSetBack(t *testing.T) {
	t.Parallel()
	const token, ahead = time.Second, 5 * time.Millisecond
	limit := pglimit.Every(token).WithBurst(10)
	type row struct {
		full, leased time.Duration // full: after at
	}
	one := []pglimit.Request{ask("k", limit, 1, 1)}
	takes := func(requests ...pglimit.Request) func(*testing.T, *pgxpool.Pool, strategies.Strategy, time.Time) {
		return func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, _ time.Time) {
			takeAll(t, pool, strategy, requests...)
		}
	}
	leases := func(tokens, settled, spent int64) func(*testing.T, *pgxpool.Pool, strategies.Strategy, time.Time) {
		return func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, _ time.Time) {
			r := pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: 1, TTL: time.Minute}
			if settled > 0 {
				until := query[int64](t, pool, "select until_ns from pglimit.token_bucket where key = 'k'")
				r.Settle, r.Spent = pglimit.Lease{Tokens: settled, Until: time.Unix(0, until)}, spent
			}
			if _, err := strategy.(pglimit.Leaser).Lease(t.Context(), on(pool), r); err != nil {
				t.Error(err)
			}
		}
	}
	tests := []struct {
		name   string
		leased int64 // before
		act    func(*testing.T, *pgxpool.Pool, strategies.Strategy, time.Time)
		want   row
	}{
		{"a grant", 0, takes(one...), row{full: 3 * token}},
		{"as much as there is", 0, takes(ask("k", limit, 2, 1)), row{full: 4 * token}},
		{"several requests", 0, takes(one[0], one[0], one[0]), row{full: 5 * token}},
		{"several buckets", 0, takes(ask("l", limit, 1, 1), one[0]), row{full: 3 * token}},
		{"as much as several buckets have", 0, takes(ask("l", limit, 1, 1), ask("k", limit, 2, 1)), row{full: 4 * token}},
		{"a denial", 0, takes(ask("k", limit, 9, 9)), row{full: 2 * token}},
		{"a refund", 0, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, at time.Time) {
			if err := strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: one[0], At: at}}); err != nil {
				t.Error(err)
			}
		}, row{full: token}},
		{"a lease", 0, leases(3, 0, 0), row{full: 2 * token, leased: 3 * token}},
		{"a lease is settled", 3, leases(0, 3, 1), row{full: 3 * token}},
		{"a lease is settled, and there is another", 3, leases(2, 3, 1), row{full: 3 * token, leased: 2 * token}},
		{"a grant beside a lease", 3, takes(one...), row{full: 3 * token, leased: 3 * token}},
	}
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Check(&pglimit.Request{Limit: limit}) != nil {
			t.Skip("it has ranges: below")
		}
		execute(t, pool, stoppedClock)
		leasedNS := "0::bigint"
		_, able := strategy.(pglimit.Leaser)
		if able {
			leasedNS = "coalesce(leased_ns, 0)"
		}
		for _, test := range tests {
			if !able && (test.leased > 0 || test.want.leased > 0) {
				continue
			}
			for _, key := range []string{"k", "l"} {
				if err := strategy.Reset(t.Context(), on(pool), "test", key); err != nil {
					t.Fatal(err)
				}
			}
			moveClock(t, pool, time.Second)
			d := takeAll(t, pool, strategy, ask("k", limit, 2, 2))[0]
			if test.leased > 0 {
				leases(test.leased, 0, 0)(t, pool, strategy, d.At)
			}
			moveClock(t, pool, -ahead)
			test.act(t, pool, strategy, d.At)
			var at int64
			var got row
			err := pool.QueryRow(t.Context(), "select at_ns, full_ns - at_ns, "+leasedNS+" from pglimit."+strategy.Name()+" where key = 'k'").Scan(&at, &got.full, &got.leased)
			if err != nil {
				t.Fatal(err)
			}
			if at != d.At.UnixNano() {
				t.Errorf("%s: it is set back by %v", test.name, time.Duration(d.At.UnixNano()-at))
			}
			if got != test.want {
				t.Errorf("%s: the row is %+v, want %+v", test.name, got, test.want)
			}
		}
	})
}

// Nor is a range that begins a little ahead of the clock.
func TestARangeALittleAheadIsNotMoved(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.ExclusionRange{}
	execute(t, pool, stoppedClock)
	limit := pglimit.Every(time.Second)
	take(t, pool, s, "k", limit)
	const ranges = "select string_agg(during::text, ' ') from pglimit.exclusion_range"
	before := query[string](t, pool, ranges)
	moveClock(t, pool, -5*time.Millisecond)
	for range 2 { // a denial could move it, and the next show that
		if d := take(t, pool, s, "k", limit); d.Allowed || d.RetryAfter != 1005*time.Millisecond {
			t.Errorf("%+v", d)
		}
	}
	if after := query[string](t, pool, ranges); after != before {
		t.Errorf("it was %s, and is %s", before, after)
	}
}

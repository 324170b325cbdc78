package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// What a process that died had leased flows back, also while others go on leasing.
func TestALeaseThatNobodySettlesEndsThoughOthersGoOn(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.Every(time.Millisecond).WithBurst(100) // full again in 100 ms
	ask := func(tokens int64, settle pglimit.Lease) pglimit.Lease {
		l, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
			Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: 1, TTL: 200 * time.Millisecond, Settle: settle,
		})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	dead := ask(60, pglimit.Lease{}) // never settled
	end := dead.Until.Add(2 * time.Second)
	mine := ask(1, pglimit.Lease{})
	for mine.At.Before(end) {
		mine = ask(1, mine)
	}
	if mine.Left.Remaining < 90 {
		t.Errorf("%d left two seconds after a lease expired: it is still set aside", mine.Left.Remaining)
	}
}

// Nobody settled a lease of 10 tokens, which expired nine seconds ago: nine have flowed
// back since. That is not forgotten by whatever writes the row, and the view shows it.
func TestWhatFlowsBackAfterALeaseIsNotForgotten(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1).WithBurst(10)
	s := strategies.TokenBucket{}
	expired := func(t *testing.T) *pgxpool.Pool {
		t.Helper()
		pool := newMigrated(t)
		take(t, pool, s, "k", limit)
		execute(t, pool, `update pglimit.token_bucket set full_ns = pglimit.clock_ns() - 19000000000, at_ns = pglimit.clock_ns() - 20000000000,
			leased_ns = 10 * token_ns, until_ns = pglimit.clock_ns() - 9000000000`)
		return pool
	}
	check := func(t *testing.T, pool *pgxpool.Pool) {
		t.Helper()
		if n := left(t, pool, limit); n < 9 {
			t.Errorf("%d tokens are left", n)
		}
	}
	t.Run("a look", func(t *testing.T) {
		t.Parallel()
		check(t, expired(t))
	})
	t.Run("the view", func(t *testing.T) {
		t.Parallel()
		pool := expired(t)
		if n := query[int64](t, pool, "select tokens_owed + tokens_leased from pglimit.buckets"); n > 1 {
			t.Errorf("%d tokens are missing", n)
		}
		if in := query[float64](t, pool, "select extract(epoch from full_at - clock_timestamp())::float8 from pglimit.buckets"); in > 1.1 || in < -5 {
			t.Errorf("full in %v seconds", in)
		}
	})
	t.Run("a refund", func(t *testing.T) {
		t.Parallel()
		pool := expired(t)
		r := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1}
		if err := s.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: r, At: time.Now().Add(-100 * time.Millisecond)}}); err != nil {
			t.Fatal(err)
		}
		check(t, pool)
	})
	t.Run("a take that had to wait", func(t *testing.T) {
		t.Parallel()
		pool := newMigrated(t)
		limit := pglimit.PerSecond(10).WithBurst(20)
		take(t, pool, s, "k", limit)
		holder := begin(t, pool)
		execute(t, holder, `update pglimit.token_bucket set leased_ns = 10 * token_ns, until_ns = pglimit.clock_ns() + 300000000`)
		execute(t, pool, "select 1")
		whileBlocked(t, pool, func() {
			if _, err := tryTake(t, pool, s, "k", limit); err != nil {
				t.Error(err)
			}
		}, func() {
			passes(t, pool, 1500*time.Millisecond)
			commit(t, holder)
		})
		if n := left(t, pool, limit); n < 19 {
			t.Errorf("%d tokens are left", n)
		}
	})
}

// A lease is known by when it expires: one that is not of those that are out is not
// settled out of them.
func TestALeaseIsNotSettledOutOfAnother(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerHour(100)
	mine := lease(t, pool, limit, 10, 4, pglimit.Lease{}, 0)
	mine.Until = mine.Until.Add(time.Second)
	lease(t, pool, limit, 0, 4, mine, 0)
	if n := left(t, pool, limit); n != 90 {
		t.Errorf("%d left", n)
	}

	// Nor is one that was settled, out of a smaller one.
	mine.Until = mine.Until.Add(-time.Second)
	lease(t, pool, limit, 5, 4, pglimit.Lease{}, 0)
	lease(t, pool, limit, 0, 4, mine, 0)
	lease(t, pool, limit, 0, 4, mine, 10)
	if n := left(t, pool, limit); n != 95 {
		t.Errorf("%d left, after it was settled twice", n)
	}
}

// While a lease of a limit is out that was much larger, the numbers stay in range.
func TestALeaseOfAMuchLargerLimit(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := strategies.TokenBucket{}
	// At the price of the slow one, what it owes does not fit a bigint, nor does what is leased.
	fast := pglimit.Every(time.Microsecond).WithBurst(1_000_000_000_000)
	takeAll(t, pool, s, pglimit.Request{Limiter: "test", Key: "k", Limit: fast, Tokens: 100_000_000_000, Unit: 1})
	lease(t, pool, fast, 250_000_000_000, 1, pglimit.Lease{}, 0)
	slow := pglimit.Every(24 * time.Hour)
	request := func(key string, tokens int64) pglimit.Request {
		return pglimit.Request{Limiter: "test", Key: key, Limit: slow, Tokens: tokens, Unit: 1}
	}
	for _, requests := range [][]pglimit.Request{
		{request("k", 0)}, {request("k", 1)}, {request("k", 1), request("l", 1)}, {request("k", 1), request("k", 1), request("m", 1)},
	} {
		decisions, err := taken(pool, func() ([]pglimit.Decision, error) { return s.Take(t.Context(), on(pool), requests) })
		if err != nil || decisions[0].Allowed || decisions[0].Remaining > 0 {
			t.Errorf("%d requests: %+v, %v", len(requests), decisions, err)
		}
	}
	if n := query[int64](t, pool, "select remaining from pglimit.peek('test', 'k', '1/day')"); n != 0 {
		t.Errorf("SQL: %d left", n)
	}
	lease(t, pool, slow, 1, 1, pglimit.Lease{}, 0)
}

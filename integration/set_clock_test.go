package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// setClock is a bucket of token_bucket in a database whose clock stands where the test sets it.
type setClock struct {
	*testing.T
	pool *pgxpool.Pool // of one connection: the clock is the connection's
	key  string
}

// Limits that are easy to count with: ten tokens, which come back at these rates.
var (
	perSecond = pglimit.PerSecond(1).WithBurst(10)
	tenPer    = pglimit.PerSecond(10).WithBurst(10)
)

// What token_bucket decides, to the microsecond, in small histories.
func TestTokenBucketOnASetClock(t *testing.T) {
	t.Parallel()
	migrated := newMigrated(t)
	execute(t, migrated, replayClock)
	for about, cases := range map[string]map[string]func(b setClock){"blocks": blocksOnSetClock(), "IDs": idsOnSetClock()} {
		t.Run(about, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, databaseURL(migrated), 1)
			for name, run := range cases {
				t.Run(name, func(t *testing.T) {
					b := setClock{t, pool, about + ": " + name}
					b.at(0)
					run(b)
				})
			}
		})
	}
}

// at sets the clock.
func (b setClock) at(since time.Duration) {
	b.Helper()
	execute(b.T, b.pool, "select set_config('pglimit_test.clock_ns', $1, false)", fmt.Sprint(b.time(since).UnixNano()))
}

func (b setClock) time(since time.Duration) time.Time {
	return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).Add(since)
}

func (b setClock) request(l pglimit.Limit, tokens int64) rate.Request {
	return rate.Request{Limiter: "test", Key: b.key, Limit: l, Tokens: tokens, Unit: max(tokens, 1)}
}

func (b setClock) ask(r rate.Request) pglimit.Decision {
	b.Helper()
	return takeAll(b.T, b.pool, strategies.TokenBucket{}, r)[0]
}

// take tokens, which must be there.
func (b setClock) take(l pglimit.Limit, tokens int64) pglimit.Decision {
	b.Helper()
	d := b.ask(b.request(l, tokens))
	if d.Granted != tokens {
		b.Errorf("take %d: %+v", tokens, d)
	}
	return d
}

// peek asks Go and SQL, which must agree.
func (b setClock) peek(l pglimit.Limit, unit int64) pglimit.Decision {
	b.Helper()
	r := b.request(l, 0)
	r.Unit = unit
	d := b.ask(r)
	inSQL, err := askSQL(b.Context(), on(b.pool), "pglimit.peek('test', $1, $2, $3)", b.key, l.String(), unit)
	inSQL.HasRow = d.HasRow // of which SQL does not tell
	if err != nil || d != inSQL {
		b.Errorf("peek for %d under %v: Go says %+v, SQL %+v, %v", unit, l, d, inSQL, err)
	}
	return d
}

// has so many tokens, and is full after that time.
func (b setClock) has(l pglimit.Limit, tokens int64, full time.Duration) {
	b.Helper()
	if d := b.peek(l, 1); d.Remaining != tokens || d.ResetAfter != full {
		b.Errorf("under %v: %d tokens, full in %v; want %d, %v", l, d.Remaining, d.ResetAfter, tokens, full)
	}
}

// leases settles a lease, and takes another one of so many tokens at most, a part of what is left.
func (b setClock) leases(l pglimit.Limit, most, share int64, ttl time.Duration, settle pglimit.Lease, spent int64) pglimit.Lease {
	b.Helper()
	got, err := (strategies.TokenBucket{}).Lease(b.Context(), on(b.pool), pglimit.LeaseRequest{
		Limiter: "test", Key: b.key, Limit: l, Tokens: most, Share: share, TTL: ttl, Settle: settle, Spent: spent,
	})
	must(b.T, err)
	if d := b.peek(l, 1); got.Left != d && got.Left.At.Equal(d.At) { // one of them may be dated as the row, a little ahead
		b.Errorf("the lease says %+v, a peek %+v", got.Left, d)
	}
	return got
}

// lease so many tokens, which must be there.
func (b setClock) lease(l pglimit.Limit, tokens int64, ttl time.Duration) pglimit.Lease {
	b.Helper()
	got := b.leases(l, tokens, 1, ttl, pglimit.Lease{}, 0)
	if got.Tokens != tokens || !got.Until.Equal(got.At.Add(ttl)) {
		b.Errorf("lease %d for %v: %+v", tokens, ttl, got)
	}
	return got
}

func (b setClock) settle(l pglimit.Limit, lease pglimit.Lease, spent int64) {
	b.Helper()
	b.leases(l, 0, 1, time.Minute, lease, spent)
}

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

func ask(key string, limit pglimit.Limit, tokens, unit int64) rate.Request {
	return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

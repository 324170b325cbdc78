package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// setClock is a key in a database whose clock stands where the test sets it.
type setClock struct {
	*testing.T
	pool *pgxpool.Pool // of one connection: the clock is the connection's
	key  string
}

// tenPer is a limit that is easy to count with.
var tenPer = pglimit.PerSecond(10).WithBurst(10)

// at sets the clock.
func (b setClock) at(since time.Duration) {
	b.Helper()
	execute(b.T, b.pool, "select set_config('pglimit_test.clock_ns', $1, false)", fmt.Sprint(b.time(since).UnixNano()))
}

func (b setClock) time(since time.Duration) time.Time {
	return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).Add(since)
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

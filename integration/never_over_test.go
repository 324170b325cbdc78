package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
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

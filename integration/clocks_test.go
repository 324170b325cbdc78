package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Clocks in place of the database's.

// replayClock stands where the test sets it.
// The check of each At shows that this is the clock by which all is decided.
const replayClock = `create or replace function pglimit.clock_ns() returns bigint
	language sql volatile parallel safe
	return current_setting('pglimit_test.clock_ns')::bigint`

// clockIs sets a replayClock.
func clockIs(t *testing.T, pool *pgxpool.Pool, now int64) {
	t.Helper()
	execute(t, pool, "select set_config('pglimit_test.clock_ns', $1::bigint::text, false)", now)
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

// sharedClock stands where windowClock puts it, in all sessions.
const sharedClock = `create sequence public.clock;
	create or replace function pglimit.clock_ns() returns bigint language plpgsql volatile as 'begin return (select last_value from public.clock); end'`

func windowClock(t *testing.T, db database, at string) {
	t.Helper()
	execute(t, db, "select setval('public.clock', pglimit.ns_of($1::text::timestamptz))", at)
}

// steppingClock is the real clock and an offset that the test changes. (Its table has an
// index because pglimit's functions dislike sequential scans.)
const steppingClock = `
	create table if not exists public.clock (id int primary key, offset_ns bigint);
	insert into public.clock values (1, 0) on conflict (id) do update set offset_ns = 0;
	create or replace function pglimit.clock_ns() returns bigint
	language sql volatile
	return (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000 + (select offset_ns from public.clock where id = 1)`

func step(t *testing.T, pool *pgxpool.Pool, by time.Duration) {
	t.Helper()
	execute(t, pool, "update public.clock set offset_ns = offset_ns + $1", by.Nanoseconds())
}

// pausingClock is the real clock, but in a session that has set test.pauses, its first reading in a
// statement waits for the advisory lock 1.
const pausingClock = `
	create or replace function pglimit.clock_ns() returns bigint language plpgsql volatile as $$
	begin
		if current_setting('test.pauses', true) = 'yes' then
			perform set_config('test.pauses', 'no', false);
			perform pg_advisory_lock_shared(1);
			perform pg_advisory_unlock_shared(1);
		end if;
		return (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint * 1000;
	end $$`

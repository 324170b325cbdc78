-- Claims the run of a job if it is due, by the database's clock.
--
-- $1 job, $2 interval and $3 slack in seconds.
-- Locks and writes the job's row; only reads it if the job is not due.
-- Returns true if the run is the caller's, no row if it is not due.
--
-- Due means outside of (now, now + interval]. A time further ahead than that was
-- written before the interval was shortened or the clock stepped back: it does
-- not count, or nothing might run for as long.
insert into pglimit.schedule as s (job, ran_at, due_at)
select $1::text, pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::float8 - $3::float8)
where not exists (
    select from pglimit.schedule
    where job = $1::text
        and due_at > pg_catalog.clock_timestamp() and due_at <= pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::float8)
)
-- A statement that had to wait for the row reads the clock and the row again.
on conflict (job) do update
set ran_at = pg_catalog.clock_timestamp(), due_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::float8 - $3::float8)
where not (s.due_at > pg_catalog.clock_timestamp() and s.due_at <= pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::float8))
returning true

-- Takes the one token of a bucket, if no range in the table holds it.
-- $1 key, $2 limiter, $3 the interval in nanoseconds, $4 whether the commit may be relaxed,
-- $5 after which time to give up if another call is inserting the same key (SQLSTATE 55P03; null: never).
-- Locks nothing but the row that it inserts.
-- Returns 1 if the token was granted, else 0, or null if another take was faster: ask again. Then the time of the
-- decision, the begin and end of the last range, in nanoseconds since 1970, and whether there is one.
with
mine as materialized (
    select clock.now_ns, pglimit.time_of(clock.now_ns) as now,
        pg_catalog.tstzrange(pglimit.time_of(clock.now_ns), pglimit.time_of(clock.now_ns + $3::bigint)) as during
    from (select pglimit.clock_ns() as now_ns offset 0) clock
),
-- A plain read. It may deny, so that a denial locks and writes nothing. It also sees ranges that
-- begin later than now.
held as materialized (
    select pg_catalog.max(pg_catalog.lower(r.during)) as since, pg_catalog.max(pg_catalog.upper(r.during)) as until, $2::text as limiter
    from $table r
    where r.key = $1::text and r.limiter = $2::text and r.during operator(pg_catalog.&&) pg_catalog.tstzrange((select mine.now from mine), null)
),
-- The constraint decides. DO NOTHING makes the insert look for a conflict before it writes:
-- without it, two inserts write, wait for one another, and deadlock. in_time fails if the insert
-- waited too long for another one that was rolled back: its range would begin too early.
taken as (
    insert into $table as r (key, limiter, during)
    select $1::text, $2::text, mine.during
    from mine
    where case when (select held.until from held) is null then $5::text is null or pg_catalog.set_config('lock_timeout', $5::text, true) is not null end
    on conflict do nothing
    returning r.limiter, r.during, pglimit.in_time(pglimit.ns_of(pg_catalog.lower(r.during)))
)
select
    case when taken.during is not null then 1::bigint when held.until is not null then 0::bigint end,
    (select mine.now_ns from mine),
    coalesce(pglimit.ns_of(pg_catalog.lower(taken.during)), pglimit.ns_of(held.since), 0::bigint),
    coalesce(pglimit.ns_of(pg_catalog.upper(taken.during)), pglimit.ns_of(held.until), 0::bigint),
    taken.during is not null or held.until is not null,
    case when $4::boolean and taken.during is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from held left join taken on taken.limiter = held.limiter

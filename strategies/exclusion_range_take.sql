-- Takes the one token of a bucket, if no range in the table holds it.
-- $1 key, $2 limiter, $3 the interval in microseconds, $4 false to look only,
-- $5 whether the commit may be relaxed.
-- Locks nothing but what it inserts. Returns whether this is a decision (if not,
-- another take was faster: ask again), whether the token was granted, the time of
-- the decision, and until when the token is gone, both in microseconds since 1970.
with
clock as materialized (
    select pg_catalog.clock_timestamp() as now
),
mine as materialized (
    select now, pg_catalog.tstzrange(now, now + $3::bigint::double precision * interval '1 microsecond') as during from clock
),
-- A plain read. It may deny, so that a denial locks and writes nothing. A range
-- that begins later counts too: the clock has stepped back, and nothing is granted
-- until it has caught up.
held as materialized (
    select max(pg_catalog.upper(r.during)) as until
    from clock join $table r
        on r.key = $1::text and r.limiter = $2::text and r.during operator(pg_catalog.&&) pg_catalog.tstzrange(clock.now, null)
),
-- The constraint decides. DO NOTHING makes the insert look for a conflict before
-- it writes: without it, two inserts write, wait for one another, and deadlock.
taken as (
    insert into $table (key, limiter, during)
    select $1, $2, mine.during
    from mine, held
    where held.until is null and $4
    on conflict do nothing
    returning pg_catalog.upper(during) as until
)
select
    taken.until is not null or held.until is not null or not $4::boolean,
    taken.until is not null,
    (extract(epoch from mine.now) * 1000000)::bigint,
    (extract(epoch from coalesce(taken.until, held.until, mine.now)) * 1000000)::bigint,
    case when $5::boolean and taken.until is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from mine cross join held left join taken on true

-- Takes from one bucket in one statement.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond,
-- $5 burst, $6 tokens wanted, $7 unit, $8 whether the commit may be relaxed.
-- Locks the row if tokens may be granted. Returns whether this is a decision (if
-- not, another take was faster: ask again), tokens granted, then the bucket's debt
-- and the time of the decision.
with
-- A plain read. It may deny, so that a denial locks and writes nothing.
seen as materialized (
    select
        greatest(clock.now_us, b.at_us) as at_us,
        pglimit.owed_v1(b.debt, b.at_us, b.token_parts, b.refill_parts, clock.now_us, $3, $4, $5) as debt
    from (select pglimit.clock_us_v1() as now_us) clock
    left join $table b on b.key = $1::text and b.limiter = $2::text
),
hoped as materialized (
    select pglimit.grantable_v1($6, $7, seen.debt, $3, $5) as granted from seen
),
-- The clock once more. Nothing asks for it before the row is locked, and a CTE is
-- read once: the condition and the update see the same time.
late as materialized (
    select pglimit.clock_us_v1() as now_us
),
-- Decided under the row lock, with the row as it is then (b). Its time only moves
-- forward, so no span of time is ever credited twice.
taken as (
    insert into $table as b (key, limiter, debt, at_us, made_us, granted, token_parts, refill_parts, burst)
    select $1, $2, hoped.granted * $3, seen.at_us, seen.at_us, hoped.granted, $3::bigint, $4::bigint, $5::bigint
    from seen, hoped
    where hoped.granted > 0
    on conflict (key, limiter) do update set
        (debt, granted, at_us) = (
            select owed + $3 * granted, granted, greatest(b.at_us, now_us)
            from late
            cross join lateral (select pglimit.owed_v1(b.debt, b.at_us, b.token_parts, b.refill_parts, now_us, $3, $4, $5) as owed) o
            cross join lateral (select pglimit.grantable_v1($6, $7, owed, $3, $5) as granted) g
        ),
        token_parts = excluded.token_parts, refill_parts = excluded.refill_parts, burst = excluded.burst
    where (
        select pglimit.grantable_v1($6::bigint, $7::bigint,
            pglimit.owed_v1(b.debt, b.at_us, b.token_parts, b.refill_parts, now_us, $3, $4, $5), $3, $5) > 0
        from late
    )
    returning b.granted, b.debt, b.at_us
)
select
    taken.granted is not null or hoped.granted = 0,
    coalesce(taken.granted, 0),
    coalesce(taken.debt, seen.debt),
    coalesce(taken.at_us, seen.at_us),
    case when $8::boolean and taken.granted > 0 then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen cross join hoped left join taken on true

-- Takes from one bucket in one statement.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window and of the time ahead, $5 tokens wanted, $6 unit,
-- $7 whether the commit may be relaxed, $8 after which time to give up if another call holds the row (SQLSTATE
-- 55P03; null: never).
-- Locks the row if tokens may be granted.
-- Returns tokens granted, or null if the row changed between the read and the lock: ask again.
-- Then the time of the decision, and the row: zeros if there is none.
with
-- A plain read. It may deny, so that a denial locks and writes nothing, and it plans how much to
-- grant. A row that is ahead of the clock is denied: the caller corrects it with step.sql, and
-- asks again.
seen as materialized (
    select clock.now_ns, b.full_ns, b.token_ns, b.at_ns, $2::text as limiter,
        case when b.at_ns > clock.now_ns + pglimit.step_ns() then 0::bigint else least($5::bigint, greatest(0::bigint,
            $4::bigint - greatest(0::bigint, pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, clock.now_ns, $3::bigint) - clock.now_ns)
        ) / $3::bigint) / $6::bigint * $6::bigint end as plan
    -- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
    from (
        select pglimit.clock_ns() as now_ns,
            (select pg_catalog.max(array[b.at_ns::bigint, b.full_ns, b.token_ns]) from $table b where b.key = $1::text and b.limiter = $2::text) as found
        offset 0
    ) clock
    cross join lateral (select clock.found[1] as at_ns, clock.found[2] as full_ns, clock.found[3] as token_ns) b
),
-- The clock again. Only the conflict branch below uses it, so Postgres reads it after the row is
-- locked, and once: the condition and the update see the same time.
late as materialized (
    select pglimit.clock_ns() as now_ns
),
-- The decision, made while the row is locked, by the row (b) and the clock as they are then. The
-- proposed row (excluded) supposes a full bucket: its full_ns - at_ns is what the take costs.
taken as (
    insert into $table as b (key, limiter, full_ns, token_ns, at_ns)
    select $1::text, $2::text, seen.now_ns + seen.plan * $3::bigint, $3::bigint, seen.now_ns
    from seen
    where case when seen.plan > 0::bigint then $8::text is null or pg_catalog.set_config('lock_timeout', $8::text, true) is not null end
    on conflict (key, limiter) do update set
        (full_ns, at_ns, token_ns) = (
            select greatest(pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, $3::bigint), now_ns) + (excluded.full_ns - excluded.at_ns),
                greatest(b.at_ns, now_ns), $3::bigint
            from late
        )
    where (
        -- As many tokens can be granted now as were planned: no less, and no more. (If a token
        -- costs less than 1 ms, more is accepted: some would come back in every new try.)
        select b.at_ns <= now_ns + pglimit.step_ns() and case when $3::bigint < 1000000::bigint then can >= plan else can = plan end
        from late
        cross join lateral (select (excluded.full_ns - excluded.at_ns) / $3::bigint as plan, least($5::bigint, (
            $4::bigint - greatest(0::bigint, pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, $3::bigint) - now_ns)
        ) / $3::bigint) / $6::bigint * $6::bigint as can) g
    )
    -- in_time fails if a first take waited too long for an insert that was rolled back: it would be
    -- dated too early.
    returning b.limiter, b.full_ns, b.at_ns, pglimit.in_time(b.at_ns)
)
select
    case when taken.full_ns is not null or seen.plan = 0::bigint then seen.plan end,
    coalesce(taken.at_ns, seen.now_ns),
    coalesce(taken.full_ns, seen.full_ns, 0::bigint),
    case when taken.full_ns is not null then $3::bigint else coalesce(seen.token_ns, 0::bigint) end,
    coalesce(taken.at_ns, seen.at_ns, 0::bigint),
    case when $7::boolean and taken.full_ns is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen left join taken on taken.limiter = seen.limiter

-- Takes from one window in one statement.
-- $most is how many cells a row has at most.
-- $1 key, $2 limiter, $3 tokens of a window, $4 nanoseconds of the window, $5 of a cell, $6 tokens wanted, $7 unit,
-- $8 whether the commit may be relaxed, $9 after which time to give up if another call holds the row (SQLSTATE
-- 55P03; null: never).
-- Locks the row if tokens may be granted.
-- Returns tokens granted; -1 if the row has to be corrected with settle.sql first; or null if it changed between the
-- read and the lock: ask again. Then the time of the decision, and the row: empty arrays if there is none.
with
-- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
found as materialized (
    select b.used, b.last_ns, b.window_ns, b.at_ns from $table b where b.key = $1::text and b.limiter = $2::text
),
-- A plain read. It may deny, so that a denial locks and writes nothing, and it plans how much to grant.
seen as materialized (
    select can.*, case when can.at_ns > can.now_ns or pg_catalog.cardinality(can.used) >= $most and can.grant > 0::bigint then -1::bigint else can.grant end as plan
    from (
        select t.now_ns, b.used, b.last_ns, b.window_ns, b.at_ns, $2::text as limiter, least($6::bigint, greatest(0::bigint, $3::bigint - (
            select least(coalesce(pg_catalog.sum(c.used), 0::numeric), 9223372036854775807::numeric)::bigint
            from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) c (used, last_ns, window_ns)
            where t.now_ns - c.last_ns < least(c.window_ns, $4::bigint)
        ))) / $7::bigint * $7::bigint as grant
        from (select pglimit.clock_ns() as now_ns, pg_catalog.max(found.at_ns) as at_ns from found) clock
        left join found b on b.at_ns = clock.at_ns
        cross join lateral (select case when b.at_ns > clock.now_ns + pglimit.step_ns() then clock.now_ns else greatest(b.at_ns, clock.now_ns) end as now_ns) t
        limit 1
    ) can
),
-- The clock again. Only the conflict branch below uses it, so Postgres reads it after the row is
-- locked, and once: the condition and the update see the same time.
late as materialized (
    select pglimit.clock_ns() as now_ns
),
-- The decision, made while the row is locked, by the row (b) and the clock as they are then. The
-- proposed row (excluded) supposes that nothing is used.
taken as (
    insert into $table as b (key, limiter, used, last_ns, window_ns, full_ns, at_ns)
    select $1::text, $2::text, array[seen.plan], array[seen.now_ns], array[$4::bigint], seen.now_ns + least($4::bigint, 9223372036854775807::bigint - seen.now_ns), seen.now_ns
    from seen
    where case when seen.plan > 0::bigint then $9::text is null or pg_catalog.set_config('lock_timeout', $9::text, true) is not null end
    on conflict (key, limiter) do update set
        -- The grant is added to the cell that is open, if there is one; if there are several (after a step back, or
        -- where callers have cells of different lengths), to the last. Cells that count under no limit go.
        (used, last_ns, window_ns, full_ns, at_ns) = (
            select case when a.is_open then a.used else pg_catalog.array_append(a.used, (excluded.used)[1]) end,
                case when a.is_open then a.last_ns else pg_catalog.array_append(a.last_ns, t.now_ns) end,
                case when a.is_open then a.window_ns else pg_catalog.array_append(a.window_ns, $4::bigint) end,
                greatest(b.full_ns, t.now_ns + least($4::bigint, 9223372036854775807::bigint - t.now_ns)), t.now_ns
            from late
            cross join lateral (select greatest(b.at_ns, late.now_ns) as now_ns) t
            cross join lateral (
                select pg_catalog.array_agg(case when c.is_open then c.used + (excluded.used)[1] else c.used end) as used,
                    pg_catalog.array_agg(case when c.is_open then t.now_ns else c.last_ns end) as last_ns,
                    pg_catalog.array_agg(c.window_ns) as window_ns,
                    pg_catalog.bool_or(c.is_open) as is_open
                from (
                    select u.used, u.last_ns, u.window_ns,
                        may.be and u.place = pg_catalog.max(u.place) filter (where may.be) over () as is_open
                    from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) with ordinality u (used, last_ns, window_ns, place)
                    cross join lateral (select u.window_ns = $4::bigint and u.last_ns / $5::bigint = t.now_ns / $5::bigint as be) may
                    where t.now_ns - u.last_ns < u.window_ns and u.used > 0::bigint
                ) c
            ) a
        )
    where (
        -- As many tokens can be granted now as were planned: no less, and no more. (If a cell, and
        -- a token, take less than 1 ms, more is accepted: some would come back in every new try.)
        select b.at_ns <= late.now_ns + pglimit.step_ns() and pg_catalog.cardinality(b.used) < $most
            and case when $5::bigint < 1000000::bigint and $4::bigint / $3::bigint < 1000000::bigint then can >= (excluded.used)[1] else can = (excluded.used)[1] end
        from late
        cross join lateral (select greatest(b.at_ns, late.now_ns) as now_ns) t
        cross join lateral (select least($6::bigint, $3::bigint - (
            select least(coalesce(pg_catalog.sum(c.used), 0::numeric), 9223372036854775807::numeric)::bigint
            from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) c (used, last_ns, window_ns)
            where t.now_ns - c.last_ns < least(c.window_ns, $4::bigint)
        )) / $7::bigint * $7::bigint as can) g
    )
    -- in_time fails if a first take waited too long for an insert that was rolled back: it would be
    -- dated too early.
    returning b.limiter, b.used, b.last_ns, b.window_ns, b.at_ns, pglimit.in_time(b.at_ns)
)
select
    case when taken.at_ns is not null or seen.plan <= 0::bigint then seen.plan end,
    coalesce(taken.at_ns, seen.now_ns),
    coalesce(taken.used, seen.used, array[]::bigint[]),
    coalesce(taken.last_ns, seen.last_ns, array[]::bigint[]),
    coalesce(taken.window_ns, seen.window_ns, array[]::bigint[]),
    coalesce(taken.at_ns, seen.at_ns, 0::bigint),
    case when $8::boolean and taken.at_ns is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen left join taken on taken.limiter = seen.limiter

-- Takes from the log of one key in one statement. Beside sliding_window/take.sql it keeps a least distance between
-- grants, and can write denials: it has no cells, but entries of two kinds. used is negative in that of a denial.
-- $most is how many entries a row has at most.
-- $1 key, $2 limiter, $3 tokens of a window, $4 nanoseconds of the window, $5 tokens wanted, $6 unit, $7 whether the
-- commit may be relaxed, $8 after which time to give up if another call holds the row (SQLSTATE 55P03; null: never),
-- $9 the least distance in nanoseconds; if it is not 0, one unit is granted at most, $10 whether denials count.
-- Locks the row if tokens may be granted, or denials count.
-- Returns tokens granted; -1 if the row has to be corrected with settle.sql first; or null if it changed between the
-- read and the lock: ask again. Then the time of the decision, and the row: empty arrays if there is none.
with
-- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
found as materialized (
    select b.used, b.last_ns, b.window_ns, b.at_ns from $table b where b.key = $1::text and b.limiter = $2::text
),
-- A plain read, which plans how much to grant. If denials do not count, it may deny: that locks and writes nothing.
seen as materialized (
    select can.*, case when can.at_ns > can.now_ns or pg_catalog.cardinality(can.used) >= $most and (can.grant > 0::bigint or $10::boolean) then -1::bigint else can.grant end as plan
    from (
        select t.now_ns, b.used, b.last_ns, b.window_ns, b.at_ns, $2::text as limiter, (
            select case
                    when pg_catalog.max(c.last_ns) > t.now_ns - $9::bigint then 0::bigint
                    else least(
                        case when $9::bigint > 0::bigint then $6::bigint else $5::bigint end,
                        greatest(0::numeric, $3::bigint::numeric - coalesce(pg_catalog.sum(pg_catalog.abs(c.used)) filter (where t.now_ns - c.last_ns < least(c.window_ns, $4::bigint)), 0::numeric))
                    )::bigint / $6::bigint * $6::bigint
                end
            from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) c (used, last_ns, window_ns)
            where c.used > 0::bigint or $10::boolean and c.used < 0::bigint
        ) as grant
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
-- proposed row (excluded) has what is planned: an entry of a grant, one of a denial, or both.
taken as (
    insert into $table as b (key, limiter, used, last_ns, window_ns, full_ns, at_ns)
    select $1::text, $2::text, p.used, pg_catalog.array_fill(seen.now_ns, array[pg_catalog.cardinality(p.used)]), pg_catalog.array_fill($4::bigint, array[pg_catalog.cardinality(p.used)]),
        seen.now_ns + least(greatest($4::bigint, $9::bigint), 9223372036854775807::bigint - seen.now_ns), seen.now_ns
    from seen
    -- The units that are not granted are denied. More than a window of them counts no more than that.
    cross join lateral (
        select pg_catalog.array_remove(array[
            seen.plan, case when $10::boolean then greatest(($5::bigint - seen.plan) / $6::bigint * -$6::bigint, -$3::bigint) else 0::bigint end
        ], 0::bigint) as used
    ) p
    where case when seen.plan >= 0::bigint and pg_catalog.cardinality(p.used) > 0 then $8::text is null or pg_catalog.set_config('lock_timeout', $8::text, true) is not null end
    on conflict (key, limiter) do update set
        -- Entries that count no more go. So do denials if there is a window of newer ones: these last longer.
        (used, last_ns, window_ns, full_ns, at_ns) = (
            select pg_catalog.array_cat(k.used, n.used), pg_catalog.array_cat(k.last_ns, pg_catalog.array_fill(t.now_ns, array[pg_catalog.cardinality(n.used)])),
                pg_catalog.array_cat(k.window_ns, pg_catalog.array_fill($4::bigint, array[pg_catalog.cardinality(n.used)])),
                greatest(b.full_ns, t.now_ns + least(greatest($4::bigint, $9::bigint), 9223372036854775807::bigint - t.now_ns)), t.now_ns
            from late
            cross join lateral (select greatest(b.at_ns, late.now_ns) as now_ns) t
            cross join lateral (
                select
                    -- The entry of a grant of the same moment, to which this one is added: a refund finds a grant by its date.
                    case when b.at_ns = t.now_ns and (excluded.used)[1] > 0::bigint then (
                        select pg_catalog.max(u.place)
                        from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) with ordinality u (used, last_ns, window_ns, place)
                        where u.used > 0::bigint and u.last_ns = t.now_ns and u.window_ns = $4::bigint
                    ) end as same,
                    -- The last denial that goes.
                    case when $10::boolean then (
                        select pg_catalog.max(d.place)
                        from (
                            select u.place, pg_catalog.sum(-u.used) over (order by u.place desc) + u.used::numeric as newer
                            from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) with ordinality u (used, last_ns, window_ns, place)
                            where u.used < 0::bigint and t.now_ns - u.last_ns < greatest(u.window_ns, $9::bigint)
                        ) d
                        where d.newer + greatest(0::bigint, -(excluded.used)[pg_catalog.cardinality(excluded.used)])::numeric >= $3::bigint::numeric
                    ) end as gone
            ) p
            cross join lateral (select case when p.same is null then excluded.used else (excluded.used)[2:] end as used) n
            cross join lateral (
                select pg_catalog.array_agg(case when u.place = p.same then u.used + (excluded.used)[1] else u.used end) as used,
                    pg_catalog.array_agg(u.last_ns) as last_ns, pg_catalog.array_agg(u.window_ns) as window_ns
                from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) with ordinality u (used, last_ns, window_ns, place)
                where t.now_ns - u.last_ns < greatest(u.window_ns, $9::bigint) and (u.used > 0::bigint or u.used < 0::bigint and u.place > coalesce(p.gone, 0::bigint))
            ) k
        )
    where (
        -- As many tokens can be granted now as were planned: no less, and no more. (If a token takes less than
        -- 1 ms, and denials do not count, more is accepted: some would come back in every new try.)
        select b.at_ns <= late.now_ns + pglimit.step_ns() and pg_catalog.cardinality(b.used) < $most
            and (can.grant = planned.grant or can.grant > planned.grant and planned.grant > 0::bigint and not $10::boolean and $4::bigint / $3::bigint < 1000000::bigint)
        from late
        cross join lateral (select greatest(b.at_ns, late.now_ns) as now_ns) t
        cross join lateral (select greatest(0::bigint, (excluded.used)[1]) as grant) planned
        cross join lateral (
            select case
                    when pg_catalog.max(c.last_ns) > t.now_ns - $9::bigint then 0::bigint
                    else least(
                        case when $9::bigint > 0::bigint then $6::bigint else $5::bigint end,
                        greatest(0::numeric, $3::bigint::numeric - coalesce(pg_catalog.sum(pg_catalog.abs(c.used)) filter (where t.now_ns - c.last_ns < least(c.window_ns, $4::bigint)), 0::numeric))
                    )::bigint / $6::bigint * $6::bigint
                end as grant
            from rows from (pg_catalog.unnest(b.used), pg_catalog.unnest(b.last_ns), pg_catalog.unnest(b.window_ns)) c (used, last_ns, window_ns)
            where c.used > 0::bigint or $10::boolean and c.used < 0::bigint
        ) can
    )
    -- in_time fails if a first take waited too long for an insert that was rolled back: it would be
    -- dated too early. And if what was denied by a row is written as the first of a key that was reset meanwhile.
    returning b.limiter, b.used, b.last_ns, b.window_ns, b.at_ns,
        pglimit.in_time(b.at_ns, b.xmax::text <> '0' or not $10::boolean or (select seen.at_ns is null or seen.plan >= $5::bigint from seen))
)
select
    case when taken.at_ns is not null or seen.plan < 0::bigint or seen.plan = 0::bigint and not $10::boolean then seen.plan end,
    coalesce(taken.at_ns, seen.now_ns),
    coalesce(taken.used, seen.used, array[]::bigint[]),
    coalesce(taken.last_ns, seen.last_ns, array[]::bigint[]),
    coalesce(taken.window_ns, seen.window_ns, array[]::bigint[]),
    coalesce(taken.at_ns, seen.at_ns, 0::bigint),
    case when $7::boolean and taken.at_ns is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen left join taken on taken.limiter = seen.limiter

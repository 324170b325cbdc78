-- Takes by one statement. A key that has been idle has stored permits, and those above a threshold cost more than a token:
-- each $11 nanoseconds more than the one below it.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 burst, $5 tokens wanted, $6 unit, $7 nanoseconds ahead,
-- $8 nanoseconds from warm to cold, $9 the threshold, $10 how many permits are stored when it is cold, $11 see above, $12
-- whether the commit may be relaxed, $13 after which time to give up if another call holds the row (SQLSTATE 55P03;
-- null: never).
-- Locks the row if tokens may be granted.
-- Returns tokens granted, or null if the row changed between the read and the lock: ask again.
-- Then the time of the decision, and of the row free_ns, due_ns and at_ns: zeros if there is none.
with
-- A plain read. It may deny, so that a denial locks and writes nothing. A row that is ahead of the clock is denied: the
-- caller corrects it with step.sql, and asks again.
seen as materialized (
    select clock.now_ns, b.free_ns, b.due_ns, b.at_ns, $2::text as limiter,
        case when b.at_ns > clock.now_ns + pglimit.step_ns() or w.wait_ns > $7::bigint then 0::bigint
            else least($5::bigint, case when w.wait_ns = 0::bigint then $4::bigint else $6::bigint end + ($7::bigint - w.wait_ns) / $3::bigint) / $6::bigint * $6::bigint end as plan
    -- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
    from (
        select pglimit.clock_ns() as now_ns,
            (select pg_catalog.max(array[b.at_ns::bigint, b.free_ns, b.due_ns]) from $table b where b.key = $1::text and b.limiter = $2::text) as found
        offset 0
    ) clock
    cross join lateral (select clock.found[1] as at_ns, clock.found[2] as free_ns, clock.found[3] as due_ns) b
    cross join lateral (select greatest(0::bigint, b.free_ns - greatest(b.at_ns, clock.now_ns)) as wait_ns) w
),
-- The clock again. Only the conflict branch below uses it, so Postgres reads it after the row is
-- locked, and once: the condition and the update see the same time.
late as materialized (
    select pglimit.clock_ns() as now_ns
),
-- The decision, made while the row is locked, by the row (b) and the clock as they are then: it grants as many as can be
-- granted then. The proposed row is that of a cold key.
taken as (
    insert into $table as b (key, limiter, full_ns, free_ns, due_ns, tokens, period_ns, at_ns)
    select $1::text, $2::text,
        f.free_ns + least(pg_catalog.ceil($8::bigint::double precision * least(1::double precision, seen.plan::double precision / $10::double precision))::bigint, 9223372036854775807::bigint - f.free_ns),
        f.free_ns, seen.now_ns, seen.plan, $8::bigint, seen.now_ns
    from seen
    cross join lateral (select greatest(0::double precision, $10::double precision - $9::double precision) as above) s
    cross join lateral (select least(seen.plan::double precision, s.above) as dear) d
    cross join lateral (
        select seen.now_ns + least(seen.plan * $3::bigint + pg_catalog.ceil(d.dear * (s.above + (s.above - d.dear)) * $11::double precision / 2::double precision)::bigint,
            9223372036854775807::bigint - seen.now_ns) as free_ns
    ) f
    where case when seen.plan > 0::bigint then $13::text is null or pg_catalog.set_config('lock_timeout', $13::text, true) is not null end
    on conflict (key, limiter) do update set
        (full_ns, free_ns, due_ns, tokens, period_ns, at_ns) = (
            select f.free_ns + least(pg_catalog.ceil($8::bigint::double precision * least(1::double precision, m.missing + g.granted::double precision / $10::double precision))::bigint, 9223372036854775807::bigint - f.free_ns),
                f.free_ns, t.due_ns, g.granted, $8::bigint, t.now_ns
            from late
            cross join lateral (select greatest(b.at_ns, late.now_ns) as now_ns, greatest(b.free_ns, b.at_ns, late.now_ns) as due_ns) t
            cross join lateral (
                select least($5::bigint, case when t.due_ns = t.now_ns then $4::bigint else $6::bigint end + ($7::bigint - (t.due_ns - t.now_ns)) / $3::bigint) / $6::bigint * $6::bigint as granted
            ) g
            -- The share of the stored permits that is missing when the grant is due. It comes back while the key is free.
            cross join lateral (select least(1::double precision, greatest(0::bigint, b.full_ns - t.due_ns)::double precision / b.period_ns::bigint::double precision) as missing) m
            cross join lateral (select greatest(0::double precision, $10::double precision * (1::double precision - m.missing) - $9::double precision) as above) s
            cross join lateral (select least(g.granted::double precision, s.above) as dear) d
            cross join lateral (
                select t.due_ns + least(g.granted * $3::bigint + pg_catalog.ceil(d.dear * (s.above + (s.above - d.dear)) * $11::double precision / 2::double precision)::bigint,
                    9223372036854775807::bigint - t.due_ns) as free_ns
            ) f
        )
    where (
        select b.at_ns <= late.now_ns + pglimit.step_ns() and b.free_ns - greatest(b.at_ns, late.now_ns) <= $7::bigint
        from late
    )
    -- in_time fails if a first take waited too long for an insert that was rolled back: it would be
    -- dated too early.
    returning b.limiter, b.tokens, b.free_ns, b.due_ns, b.at_ns, pglimit.in_time(b.at_ns)
)
select
    case when taken.at_ns is not null then taken.tokens when seen.plan = 0::bigint then 0::bigint end,
    coalesce(taken.at_ns, seen.now_ns),
    coalesce(taken.free_ns, seen.free_ns, 0::bigint),
    coalesce(taken.due_ns, seen.due_ns, 0::bigint),
    coalesce(taken.at_ns, seen.at_ns, 0::bigint),
    case when $12::boolean and taken.at_ns is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen left join taken on taken.limiter = seen.limiter

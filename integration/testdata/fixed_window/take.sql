-- Takes from one bucket of the table fixed_window, in one statement.
-- $1 key, $2 limiter, $3 nanoseconds of a window, $4 burst, $5 tokens wanted, $6 unit, $7 whether the commit may
-- be relaxed, $8 lock_timeout (null: as it is).
-- Returns tokens granted, or null if the row changed between the read and the lock: ask again. Then the time of
-- the decision, how many tokens of its window are used, and whether there is a row.
with
patience as materialized (
    select case when $8::text is not null then pg_catalog.set_config('lock_timeout', $8::text, true) end
),
-- A plain read, which may deny, and plans how much to grant.
seen as materialized (
    select now_ns, now_ns - now_ns % $3::bigint as start_ns, used, b.at_ns is not null as has_row,
        least($5::bigint, greatest(0::bigint, $4::bigint - used)) / $6::bigint * $6::bigint as plan
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    left join public.fixed_window b on b.key = $1::text and b.limiter = $2::text
    cross join lateral (select case when b.at_ns >= now_ns - now_ns % $3::bigint then b.full_ns - b.start_ns else 0::bigint end as used) u
),
-- The clock again, which only the conflict branch reads: behind the lock.
late as materialized (
    select pglimit.clock_ns() as now_ns
),
taken as (
    insert into public.fixed_window as b (key, limiter, full_ns, start_ns, at_ns)
    select $1::text, $2::text, seen.start_ns + seen.plan, seen.start_ns, seen.now_ns
    from seen, patience
    where seen.plan > 0::bigint
    on conflict (key, limiter) do update set
        (full_ns, start_ns, at_ns) = (
            select start_ns + used + (excluded.full_ns - excluded.start_ns), start_ns, at_ns
            from late
            cross join lateral (select greatest(b.at_ns, now_ns) as at_ns) a
            cross join lateral (select at_ns - at_ns % $3::bigint as start_ns) s
            cross join lateral (select case when b.at_ns >= start_ns then b.full_ns - b.start_ns else 0::bigint end as used) u
        )
    where (
        select least($5::bigint, greatest(0::bigint, $4::bigint - used)) / $6::bigint * $6::bigint = excluded.full_ns - excluded.start_ns
        from late
        cross join lateral (select greatest(b.at_ns, now_ns) as at_ns) a
        cross join lateral (select at_ns - at_ns % $3::bigint as start_ns) s
        cross join lateral (select case when b.at_ns >= start_ns then b.full_ns - b.start_ns else 0::bigint end as used) u
    )
    returning b.full_ns - b.start_ns as used, b.at_ns, pglimit.in_time(b.at_ns)
)
select
    case when taken.at_ns is not null or seen.plan = 0::bigint then seen.plan end,
    coalesce(taken.at_ns, seen.now_ns),
    coalesce(taken.used, seen.used),
    taken.at_ns is not null or seen.has_row,
    case when $7::boolean and taken.at_ns is not null then pg_catalog.set_config('synchronous_commit', 'off', true) end
from seen left join taken on true

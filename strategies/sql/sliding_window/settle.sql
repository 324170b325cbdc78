-- Corrects a row that is ahead of the clock because the clock has stepped back: its cells are as old now as they were
-- when the row was written. And joins pairs of cells if there are too many, as under ever different limits: each pair
-- counts for as long as the longer one. (The denials that a log has, below 0, are joined with their like.)
-- $most is how many cells a row has at most; it depends on the table.
-- $1 key, $2 limiter.
-- Locks the row, and reads the clock after that: compared with an older time, a row that
-- another call has just written would seem to be ahead.
with
held as materialized (
    select b.used, b.last_ns, b.window_ns, b.full_ns, b.at_ns
    from $table b
    where b.key = $1::text and b.limiter = $2::text
    for no key update
),
read as materialized (
    select held.full_ns, held.used, held.last_ns, held.window_ns, c.now_ns,
        case when held.at_ns > c.now_ns + pglimit.step_ns() then held.at_ns - c.now_ns else 0::bigint end as back_ns
    from held cross join lateral (select pglimit.clock_ns() as now_ns where held.at_ns > 0::bigint offset 0) c
)
update $table b
set (used, last_ns, window_ns) = (
        select coalesce(pg_catalog.array_agg(p.used order by p.last_ns), array[]::bigint[]), coalesce(pg_catalog.array_agg(p.last_ns - r.back_ns order by p.last_ns), array[]::bigint[]),
            coalesce(pg_catalog.array_agg(p.window_ns order by p.last_ns), array[]::bigint[])
        from (
            select least(pg_catalog.sum(c.used), 9223372036854775807::numeric)::bigint as used, pg_catalog.max(c.last_ns) as last_ns, pg_catalog.max(c.window_ns) as window_ns
            from (
                select u.used, u.last_ns, u.window_ns, pg_catalog.row_number() over (partition by u.used > 0::bigint order by u.last_ns) as place
                from rows from (pg_catalog.unnest(r.used), pg_catalog.unnest(r.last_ns), pg_catalog.unnest(r.window_ns)) u (used, last_ns, window_ns)
                where u.used <> 0::bigint
            ) c
            group by c.used > 0::bigint, case when pg_catalog.cardinality(r.used) >= $most then c.place / 2::bigint else c.place end
        ) p
    ),
    full_ns = greatest(1::bigint, r.full_ns - r.back_ns),
    at_ns = case when r.back_ns > 0::bigint then r.now_ns else b.at_ns end
from read r
where b.key = $1::text and b.limiter = $2::text and (r.back_ns > 0::bigint or pg_catalog.cardinality(r.used) >= $most)

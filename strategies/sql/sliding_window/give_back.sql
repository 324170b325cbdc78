-- Gives back tokens that were granted and not used, to the cell that has them: nothing, if that has gone. Nor to a grant
-- that is dated after the cell or the clock: the clock has stepped back since. If several cells may have them (after a
-- step back, or where callers have cells of different lengths), to the one that goes first.
-- $1 key, $2 limiter, $3 nanoseconds of the window, $4 of a cell, $5 tokens, $6 when they were granted, in nanoseconds
-- since 1970, $7 whether the commit may be relaxed, $8 the table: where a pooler mixes up statements, the one of the
-- other table gives nothing back.
-- Waits for any call that holds the row, locks it, and only then reads it.
-- Returns nothing of use.
with
held as materialized (
    select b.used, b.last_ns, b.window_ns
    from $table b
    where b.key = $1::text and b.limiter = $2::text
    for no key update
),
given as (
    update $table b
    set used = h.rest
    from (
        select pg_catalog.array_agg(case when c.has then greatest(0::bigint, c.used - $5::bigint) else c.used end order by c.place) as rest, pg_catalog.bool_or(c.has) as has
        from held
        cross join lateral (
            select u.used, u.place, may.have and pg_catalog.row_number() over (order by not may.have, u.last_ns, u.place) = 1::bigint as has
            from rows from (pg_catalog.unnest(held.used), pg_catalog.unnest(held.last_ns), pg_catalog.unnest(held.window_ns)) with ordinality u (used, last_ns, window_ns, place)
            cross join lateral (
                select u.used > 0::bigint and u.window_ns = $3::bigint and u.last_ns / $4::bigint = $6::bigint / $4::bigint and u.last_ns >= $6::bigint as have
            ) may
        ) c
    ) h
    where b.key = $1::text and b.limiter = $2::text and h.has and $8::text = '$table'
    returning 1
)
select case when $7::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

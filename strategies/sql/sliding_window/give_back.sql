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
cells as materialized (
    select u.used, u.last_ns, u.place, u.used > 0::bigint and u.window_ns = $3::bigint and u.last_ns / $4::bigint = $6::bigint / $4::bigint and u.last_ns >= $6::bigint as may_have
    from rows from (pg_catalog.unnest((select held.used from held)), pg_catalog.unnest((select held.last_ns from held)), pg_catalog.unnest((select held.window_ns from held)))
        with ordinality u (used, last_ns, window_ns, place)
),
first as materialized (
    select (pg_catalog.min(array[c.last_ns, c.place]))[2] as place from cells c where c.may_have
),
given as (
    update $table b
    set used = (select pg_catalog.array_agg(case when c.place = (select first.place from first) then greatest(0::bigint, c.used - $5::bigint) else c.used end) from cells c)
    where b.key = $1::text and b.limiter = $2::text and (select first.place from first) is not null and $8::text = '$table'
    returning 1
)
select case when $7::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

-- Gives back tokens that were granted and not used, minus what was refilled since the grant:
-- a full bucket would have discarded that refill, so crediting both would exceed the limit. A
-- row whose last write was under another price of a token gets nothing back. Neither does a grant
-- that is dated after both the row and the clock: the clock has stepped back since, so how much
-- was refilled is unknown.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 tokens, $5 when they were granted, in
-- nanoseconds since 1970, $6 whether the commit may be relaxed.
-- Waits for any call that holds the row, locks it, and only then reads the clock.
-- Returns nothing of use.
with
held as materialized (
    select b.full_ns, b.at_ns
    from $table b
    where b.key = $1::text and b.limiter = $2::text and b.token_ns = $3::bigint
    for no key update
),
given as (
    update $table b
    set full_ns = greatest(h.now_ns, h.full_ns - ($3::bigint * $4::bigint - (h.later_ns - $5::bigint)))
    from (
        select held.full_ns, c.now_ns, greatest(held.at_ns, c.now_ns) as later_ns 
        from held cross join lateral (select pglimit.clock_ns() as now_ns where held.at_ns > 0::bigint offset 0) c
        offset 0
    ) h
    where b.key = $1::text and b.limiter = $2::text
        and h.full_ns > h.now_ns and h.later_ns >= $5::bigint and h.later_ns - $5::bigint < $3::bigint * $4::bigint
    returning 1
)
select case when $6::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

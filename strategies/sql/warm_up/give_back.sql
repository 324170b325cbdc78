-- Gives back tokens that were granted and not used, if they are the last that were granted: others who come behind them
-- have been told when they are due, and do not move up. A whole grant gives back all that it costs; a part of one what its
-- tokens cost a warm key, and only if no other part of it is due later. An earlier grant is the last one when those
-- behind it were given back, and costs no more than a warm key's: else nobody knows what it costs. The key stays as warm
-- as it is.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 burst, $5 tokens, $6 when they were granted, in nanoseconds since
-- 1970, $7 how many nanoseconds later they were due, $8 whether the commit may be relaxed.
-- Waits for any call that holds the row, locks it, and only then reads it.
-- Returns nothing of use.
with
held as materialized (
    select b.free_ns, b.due_ns, b.tokens, b.at_ns from $table b where b.key = $1::text and b.limiter = $2::text for no key update
),
back as materialized (
    select h.free_ns, h.due_ns, h.tokens, g.back_ns
    from held h
    cross join lateral (select $6::bigint + $7::bigint as due_ns) r
    cross join lateral (
        select case
                when h.at_ns = $6::bigint and h.due_ns <= r.due_ns and $5::bigint >= h.tokens then h.free_ns - h.due_ns
                when h.at_ns = $6::bigint and h.due_ns <= r.due_ns and ($7::bigint = 0::bigint and h.tokens <= $4::bigint or r.due_ns - h.due_ns >= (h.tokens - $5::bigint) * $3::bigint)
                    then least(h.free_ns - h.due_ns, $5::bigint * $3::bigint)
                when h.at_ns >= $6::bigint and h.tokens = 0::bigint and h.free_ns - r.due_ns <= $5::bigint * $3::bigint then h.free_ns - r.due_ns
            end as back_ns
    ) g
    where r.due_ns < h.free_ns and g.back_ns > 0::bigint
),
given as (
    update $table b
    set (free_ns, full_ns, due_ns, tokens) = (
        select h.free_ns - h.back_ns, greatest(1::bigint, b.full_ns - h.back_ns), least(h.due_ns, h.free_ns - h.back_ns), greatest(0::bigint, h.tokens - $5::bigint)
        from back h
    )
    where b.key = $1::text and b.limiter = $2::text and exists (select from back)
    returning 1
)
select case when $8::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

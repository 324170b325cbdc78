-- Gives back tokens that were granted and not used, minus what was refilled since they were due: a
-- full bucket would have discarded that refill, so crediting both would exceed the limit. For
-- the same reason minus what was reserved behind them: those tokens stay where they are, and a
-- bucket that owes more than its window has been taken from up to the time full_ns - window.
-- (More than a window of tokens gets at most a window back then: they were due at different times.)
-- A row whose last write was under another price of a token gets nothing back. Neither does a grant
-- that is dated after both the row and the clock: the clock has stepped back since, so how much
-- was refilled is unknown.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens, $6 when they were
-- granted, in nanoseconds since 1970, $7 how many nanoseconds later they were due, $8 whether the
-- commit may be relaxed.
-- Waits for any call that holds the row, locks it, and only then reads the clock.
-- Returns nothing of use.
with
held as materialized (
    select b.full_ns, b.at_ns
    from $table b
    where b.key = $1::text and b.limiter = $2::text and b.token_ns = $3::bigint
    for no key update
),
read as materialized (
    select c.full_ns, c.now_ns, greatest(c.at_ns, c.now_ns) as later_ns,
        greatest(0::bigint, greatest(c.at_ns, c.now_ns, c.full_ns - $4::bigint) - $6::bigint - $7::bigint) as used_ns
    from (select held.full_ns, held.at_ns, pglimit.clock_ns() as now_ns from held offset 0) c
),
given as (
    update $table b
    set full_ns = (
        select greatest(h.now_ns, h.full_ns - (case when h.used_ns > 0::bigint then least($4::bigint, $3::bigint * $5::bigint) else $3::bigint * $5::bigint end - h.used_ns))
        from read h
    )
    where b.key = $1::text and b.limiter = $2::text
        and (select h.full_ns > h.now_ns and h.later_ns >= $6::bigint and h.used_ns < least($4::bigint, $3::bigint * $5::bigint) from read h)
    returning 1
)
select case when $8::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

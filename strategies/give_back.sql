-- Gives tokens back that were granted and not used, less what has flowed back in their
-- stead since: while they were out, the bucket may have been full, and what it did not
-- take up then cannot be had twice. A row that was made after the grant gets nothing, nor
-- one whose limit has changed, nor one that has to count a lease first which has expired
-- ($counted, which depends on the table).
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond, $5 burst,
-- $6 tokens, $7 when they were granted, in microseconds since 1970, $8 whether the commit
-- may be relaxed.
-- Waits for whoever holds the row, and locks it. The clock may be older than the wait: the
-- row's own time is not, and nothing before that counts.
with
clock as materialized (
    select pglimit.clock_us_v1() as now_us
),
given as (
    update $table b
    set at_us = greatest(b.at_us, now_us),
        debt = greatest(0, pglimit.drain_v1(b.debt, now_us - b.at_us, $4) - pglimit.drain_v1($6 * $3, greatest(b.at_us, now_us) - $7, $4))
    from clock
    where b.key = $1::text and b.limiter = $2::text and b.token_parts = $3::bigint and b.refill_parts = $4::bigint and b.burst = $5::bigint
        and b.made_us <= $7::bigint and b.debt > 0 and $counted
        and pglimit.drain_v1($6::bigint * $3, greatest(b.at_us, now_us) - $7, $4) > 0
    returning 1
)
select case when $8::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end from given

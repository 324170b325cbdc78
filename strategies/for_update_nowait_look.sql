-- Reads a bucket without locking it.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond, $5 burst:
-- the last three stand in where there is no row, which is a full bucket.
-- Returns the clock, whether there is a row, and the row.
select
    clock.now_us, b.key is not null,
    coalesce(b.debt, 0), coalesce(b.at_us, 0),
    coalesce(b.token_parts, $3::bigint), coalesce(b.refill_parts, $4::bigint), coalesce(b.burst, $5::bigint)
from (select pglimit.clock_us_v1() as now_us) clock
left join $table b on b.key = $1::text and b.limiter = $2::text

-- Locks the row or fails at once, but only if a plain read shows that something
-- could be granted: a denial locks nothing.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond, $5 burst,
-- $6 tokens wanted, $7 unit.
-- Returns the row as last committed; no row if there is none, or nothing to grant.
select b.debt, b.at_us, b.token_parts, b.refill_parts, b.burst
from $table b
where b.key = $1::text and b.limiter = $2::text
    and pglimit.grantable_v1($6::bigint, $7::bigint, pglimit.owed_v1(
        b.debt, b.at_us, b.token_parts, b.refill_parts, (select pglimit.clock_us_v1()), $3::bigint, $4::bigint, $5::bigint), $3, $5) > 0
for no key update nowait

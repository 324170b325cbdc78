-- Locks the row or fails at once, but only if a plain read shows that something
-- could be granted: a denial locks nothing.
-- $1 key, $2 limiter, $3 parts of a token, $4 burst, $5 tokens wanted, $6 unit.
-- Returns the row as last committed; no row if there is none, or nothing to grant.
select b.debt, b.at_us, b.token_parts, b.refill_parts, b.burst
from $table b
where b.key = $1::text and b.limiter = $2::text
    and pglimit.grantable($5::bigint, $6::bigint,
        pglimit.owed(b.debt, b.at_us, b.token_parts, b.refill_parts, pglimit.clock_us(), $3::bigint, $4::bigint), $3, $4) > 0
for no key update nowait

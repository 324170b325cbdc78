-- Writes what was decided to the row that is locked.
-- $1 key, $2 limiter, $3 debt, $4 time, $5 parts of a token, $6 parts refilled per
-- microsecond, $7 burst.
update $table
set debt = $3::bigint, at_us = $4::bigint, token_parts = $5::bigint, refill_parts = $6::bigint, burst = $7::bigint
where key = $1::text and limiter = $2::text

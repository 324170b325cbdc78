-- Acquires a permit: pglimit.acquire. $1 limiter, $2 key, $3 places, $4 weight, $5 microseconds that
-- it lasts, $6 holder, $7 places where $3 is null and the table has no rule. Returns whether there was a place, the token,
-- and if there was none, in how many microseconds the first permit expires.
-- Locks the row if there is a place.
select p.acquired, coalesce(p.token, 0::bigint), coalesce((extract(epoch from p.retry_after) operator(pg_catalog.*) 1000000::numeric)::bigint, 0::bigint)
from pglimit.acquire($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint operator(pg_catalog.*) interval '1 microsecond', $6::text, $7::bigint) p

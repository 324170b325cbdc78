-- Dates the first take of a key anew if it had to wait for an insert that was rolled
-- back: what flowed back meanwhile must not be credited.
-- $1 key, $2 limiter, $3 the time that was inserted, by which the row is known to be
-- ours and not that of an insert that was sooner. Returns the time, if it is another.
update $table
set at_us = pglimit.clock_us_v1()
where key = $1::text and limiter = $2::text and at_us = $3::bigint and at_us + 1000 < (select pglimit.clock_us_v1())
returning at_us

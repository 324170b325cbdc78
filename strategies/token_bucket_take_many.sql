-- Takes from many buckets of one limit. The function is in the migration
-- 00008_hot_path.sql.
-- $1 keys, distinct and in bytewise order; $2 for each the number of its last request in
-- $3 and $4: tokens wanted, units. $5 limiter, $6 parts of a token, $7 parts refilled per
-- microsecond, $8 burst, $9 whether the commit may be relaxed.
-- Locks the rows of which tokens are granted, in the order of the keys. Returns one row of
-- arrays: numbers of keys, tokens granted to each in all, debts and times of decision.
-- Fails with SQLSTATE 55P03 if it would have to wait for somebody out of order: then
-- nothing was taken.
select numbers, grants, debts, ats_us
from pglimit.token_bucket_take_many_v2($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text, $6::bigint, $7::bigint, $8::bigint, $9::boolean)

-- Takes from many buckets: as token_bucket_take.sql, with an array for each of the
-- parameters $1 to $7, ordered by key and limiter, in which order rows are locked.
-- Returns one row per request, in that order.
select granted, debt, at_us
from pglimit.token_bucket_take_many_v1($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean)

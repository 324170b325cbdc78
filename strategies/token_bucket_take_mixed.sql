-- Takes from buckets of several limiters or limits, one after another. The function is in
-- the migration 00002_token_bucket.sql.
-- Arrays with an element per request, in the bytewise order of keys and limiters, in which
-- rows are locked: $1 keys, $2 limiters, $3 parts of a token, $4 parts refilled per
-- microsecond, $5 bursts, $6 tokens wanted, $7 units. $8 whether the commit may be relaxed.
-- Returns one row per request, in that order: tokens granted, debt, time.
select granted, debt, at_us
from pglimit.token_bucket_take_many_v1($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::boolean)

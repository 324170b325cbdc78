-- Takes from one bucket. The function is in the migration 00002_token_bucket.sql.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond,
-- $5 burst, $6 tokens wanted, $7 unit, $8 whether the commit may be relaxed.
-- Locks the row if tokens are granted. Returns tokens granted, then the bucket's
-- debt and the time of the decision.
select granted, debt, at_us
from pglimit.token_bucket_take_v1($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::boolean)

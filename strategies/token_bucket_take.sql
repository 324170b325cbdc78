-- Takes from one bucket, all or nothing. The function is in the migration
-- 00008_hot_path.sql.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond,
-- $5 burst, $6 tokens wanted, $7 whether the commit may be relaxed.
-- Locks the row if the tokens are granted. Returns tokens granted, then the bucket's
-- debt and the time of the decision.
select granted, debt, at_us
from pglimit.token_bucket_take_v2($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::boolean)

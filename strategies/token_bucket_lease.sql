-- Settles a lease and takes the next one. The function is in the migration
-- 00008_hot_path.sql.
-- $1 key, $2 limiter, $3 parts of a token, $4 parts refilled per microsecond, $5 burst,
-- $6 tokens wanted, $7 one in how many of those left at most, $8 microseconds that it lasts,
-- $9 tokens of the lease to settle (0: none), $10 how many of them were spent, $11 when it was
-- made, $12 when it expires, in microseconds since 1970, $13 whether the commit may be relaxed.
-- Locks the row. Returns tokens set aside and when they
-- expire, then the bucket's debt and the time.
select granted, until_us, debt, at_us
from pglimit.token_bucket_lease_v1(
    $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint,
    $9::bigint, $10::bigint, $11::bigint, $12::bigint, $13::boolean)

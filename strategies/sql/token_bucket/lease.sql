-- Settles a lease and takes the next one: migrations/functions/token_bucket_lease.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens wanted, $6 share: at
-- most one in that many of the tokens left, $7 nanoseconds that the new lease lasts at most,
-- $8 tokens of the lease to settle (0: none), $9 how many of them were spent, $10 when that lease
-- expires, $11 whether the commit may be relaxed.
-- Locks the row. Returns the tokens set aside, the time, and the row.
select t.granted, t.now_ns, (t.bucket).full_ns, (t.bucket).token_ns, (t.bucket).at_ns,
    coalesce((t.bucket).leased_ns, 0::bigint), coalesce((t.bucket).until_ns, 0::bigint),
    case when $11::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_lease(
    $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint,
    $8::bigint, $9::bigint, $10::bigint) t

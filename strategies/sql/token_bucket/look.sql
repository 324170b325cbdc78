-- Reads a bucket, and whether the key is blocked: migrations/functions/token_bucket_look_blocked.sql.
-- $1 key, $2 limiter.
-- Locks nothing. Returns the clock, for how long the key is blocked (0: it is not), and the bucket's
-- row: zeros if there is none.
select t.now_ns, t.blocked_ns, coalesce((t.bucket).full_ns, 0::bigint), coalesce((t.bucket).token_ns, 0::bigint), coalesce((t.bucket).at_ns, 0::bigint),
    coalesce((t.bucket).leased_ns, 0::bigint), coalesce((t.bucket).until_ns, 0::bigint)
from pglimit.token_bucket_look_blocked($1::text, $2::text) t

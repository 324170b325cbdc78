-- Reads a bucket, and whether the key is blocked: migrations/functions/token_bucket_look.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of a burst, $5 the calendar of the limit, or null.
-- Locks nothing.
select t.taken, t.blocked_ns from pglimit.token_bucket_look($1::text, $2::text, $3::bigint, $4::bigint, $5::text) t

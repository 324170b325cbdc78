-- Reads a bucket, and whether the key is blocked: migrations/functions/token_bucket_look.sql.
-- $1 key, $2 limiter.
-- Locks nothing.
select pglimit.token_bucket_look($1::text, $2::text)

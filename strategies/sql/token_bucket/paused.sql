-- Returns until when a bucket is, or was last, paused, in nanoseconds since 1970; 0: it is not. $1 key, $2 limiter. Locks
-- nothing.
select coalesce((select t.paused_ns from pglimit.token_bucket t where t.key = $1::text and t.limiter = $2::text), 0::bigint),
    pg_catalog.row_security_active('pglimit.token_bucket'::pg_catalog.regclass)

-- Returns for how long from now on a bucket is paused, in nanoseconds; 0: it is not. $1 key, $2 limiter. Locks nothing.
select coalesce((
        select greatest(0::bigint, t.paused_ns - greatest(t.at_ns, pglimit.clock_ns()))
        from pglimit.token_bucket t where t.key = $1::text and t.limiter = $2::text
    ), 0::bigint), pg_catalog.row_security_active('pglimit.token_bucket'::pg_catalog.regclass)

-- Gives the one token of a bucket back: removes the range that begins when the token was granted.
-- $1 key, $2 limiter, $3 when the token was granted, in nanoseconds since 1970, $4 whether the
-- commit may be relaxed.
-- Locks the row. Returns whether row security hides rows.
with given as (
    delete from $table r
    where r.key = $1::text and r.limiter = $2::text and pg_catalog.lower(r.during) = pglimit.time_of($3::bigint)
    returning 1
)
select pg_catalog.row_security_active('$table'::pg_catalog.regclass), case when $4::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

-- Reads a bucket without locking anything.
-- $1 key, $2 limiter.
-- Returns the clock, then the begin and the end of the last range that has not ended: zeros if
-- there is none. All are nanoseconds since 1970. And whether there is a range at all, and whether row security hides rows.
with
clock as materialized (
    select pglimit.clock_ns() as now_ns
)
select (select clock.now_ns from clock),
    coalesce(pg_catalog.max(pglimit.ns_of(pg_catalog.lower(r.during))), 0::bigint), coalesce(pg_catalog.max(pglimit.ns_of(pg_catalog.upper(r.during))), 0::bigint),
    exists (select from $table any_range where any_range.key = $1::text and any_range.limiter = $2::text),
    pg_catalog.row_security_active('$table'::pg_catalog.regclass)
from $table r
where r.key = $1::text and r.limiter = $2::text and r.during operator(pg_catalog.&&) pg_catalog.tstzrange(pglimit.time_of((select clock.now_ns from clock)), null)

-- Reads a bucket without locking it.
-- $1 key, $2 limiter.
-- Returns the clock, and the row: zeros if there is none; and whether row security hides rows.
select clock.now_ns, coalesce(b.full_ns, 0::bigint), coalesce(b.token_ns, 0::bigint), coalesce(b.at_ns, 0::bigint), pg_catalog.row_security_active('$table'::pg_catalog.regclass)
from (select pglimit.clock_ns() as now_ns) clock
left join $table b on b.key = $1::text and b.limiter = $2::text

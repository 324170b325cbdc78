-- Reads a row without locking it.
-- $1 key, $2 limiter.
-- Returns the clock, and the row: empty arrays if there is none; and whether row security hides rows.
select clock.now_ns, coalesce(b.used, array[]::bigint[]), coalesce(b.last_ns, array[]::bigint[]), coalesce(b.window_ns, array[]::bigint[]),
    coalesce(b.at_ns, 0::bigint), pg_catalog.row_security_active('$table'::pg_catalog.regclass)
from (select pglimit.clock_ns() as now_ns) clock
left join lateral (
    -- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
    select * from $table b where b.key = $1::text and b.limiter = $2::text order by b.at_ns desc limit 1
) b on true

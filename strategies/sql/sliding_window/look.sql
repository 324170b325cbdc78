-- Reads a row without locking it.
-- $1 key, $2 limiter.
-- Returns the clock, and the row: empty arrays if there is none; and whether row security hides rows.
with
-- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
found as materialized (
    select b.used, b.last_ns, b.window_ns, b.at_ns from $table b where b.key = $1::text and b.limiter = $2::text
)
select clock.now_ns, coalesce(b.used, array[]::bigint[]), coalesce(b.last_ns, array[]::bigint[]), coalesce(b.window_ns, array[]::bigint[]),
    coalesce(b.at_ns, 0::bigint), pg_catalog.row_security_active('$table'::pg_catalog.regclass)
from (select pglimit.clock_ns() as now_ns, pg_catalog.max(found.at_ns) as at_ns from found) clock
left join found b on b.at_ns = clock.at_ns
limit 1

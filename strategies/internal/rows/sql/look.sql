-- Reads a bucket without locking it.
-- $1 key, $2 limiter.
-- Returns the clock, and of the row two columns, which depend on the table, and at_ns: zeros if there is none; and whether
-- row security hides rows.
select b.now_ns, coalesce(b.found[2], 0::bigint), coalesce(b.found[3], 0::bigint), coalesce(b.found[1], 0::bigint), pg_catalog.row_security_active('$table'::pg_catalog.regclass)
-- One row at most, but in a transaction with repeatable reads, which sees one that was removed meanwhile beside its own.
from (
    select pglimit.clock_ns() as now_ns,
        (select pg_catalog.max(array[b.at_ns::bigint, $columns]) from $table b where b.key = $1::text and b.limiter = $2::text) as found
    offset 0
) b

-- Fills a bucket by deleting its row: no row means full.
-- $1 key, $2 limiter.
-- Waits for any call that holds the row, and locks it. Returns whether row security hides rows, and how many it removed.
with removed as (delete from $table where key = $1::text and limiter = $2::text returning 1)
select pg_catalog.row_security_active('$table'::pg_catalog.regclass), (select pg_catalog.count(*) from removed)

-- Fills a bucket by deleting its rows.
-- $1 key, $2 limiter.
-- Waits for any call that holds a row, and locks it. Returns how many rows it removed.
with removed as (
    delete from $table
    where key = $1::text and limiter = $2::text
    returning 1
)
select pg_catalog.count(*) from removed

-- Fills the buckets of a limiter whose rows lie in a range of pages, by deleting the rows. See
-- sweep.sql, which walks a table in the same way.
-- $1 first page, $2 the page after the last, $3 limiter.
-- Locks the rows that it removes; skips locked rows; waits for nobody.
-- Returns how many rows it removed, and whether the table ends here. It misses a row that an
-- update moves to a page that was walked already: reset_all_left.sql finds that row.
with mine as materialized (
    select ctid
    from $table
    where ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid and ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
        and limiter = $3::text
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from mine))
    returning 1
)
select
    (select pg_catalog.count(*) from removed),
    $2::bigint >= pg_catalog.pg_relation_size('$table') / pg_catalog.current_setting('block_size')::bigint

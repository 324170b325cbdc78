-- Removes rows from a range of pages. Walking pages needs no index on a changing column, and reads each page once per walk.
-- It misses a row that an update moves to a page that was walked already.
--
-- $goes says which: in a sweep, the rows of buckets that have been full for a minute. Why a minute: a take may have read
-- the clock earlier and still wait, and the clock may step back, which only a row can show. In ResetAll, those of the
-- limiter $4.
-- $1 first page, $2 the page after the last, $3 whether the transaction is not the caller's
-- and its commit need not wait for the disk (rows that a crash brings back are swept again).
-- Locks the rows that it removes; skips locked rows; waits for nobody.
-- Returns how many rows it removed, whether the table ends here, and whether row security hides rows.
with going as materialized (
    select ctid
    from $table
    where ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid and ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
        and $goes
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from going))
    returning 1
)
select
    (select pg_catalog.count(*) from removed),
    $2::bigint >= pg_catalog.pg_relation_size('$table') / pg_catalog.current_setting('block_size')::bigint,
    pg_catalog.row_security_active('$table'::pg_catalog.regclass),
    case when $3::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

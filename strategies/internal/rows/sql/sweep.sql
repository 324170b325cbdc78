-- Removes the rows of buckets that have been full for a minute, from a range of
-- pages: no index on a changing column is needed to find them, and each page is
-- read once per walk. The minute is for takes that read the clock before and still
-- wait, and for clocks that step back: a row remembers what its absence does not.
--
-- $full_ns is when the bucket is full and $leased_ns what was leased then, which depend on
-- the table. (Compared, not added: no sum can overflow.)
-- $1 first page, $2 the page behind the last, $3 whether the transaction is ours
-- and need not wait for the disk (what a crash brings back is swept again).
-- Locks the rows it removes; passes over locked ones; waits for nobody.
-- Returns how many were removed, and whether the table ends here.
with full_rows as materialized (
    select ctid
    from $table
    where ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid and ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
        and $full_ns <= (select pglimit.clock_ns()) - 60000000000::bigint - $leased_ns
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from full_rows))
    returning 1
)
select
    (select pg_catalog.count(*) from removed),
    $2::bigint >= pg_catalog.pg_relation_size('$table') / pg_catalog.current_setting('block_size')::bigint,
    case when $3::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

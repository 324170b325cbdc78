-- Fills the buckets of some keys of a limiter, by deleting their rows.
-- $1 keys, $2 limiter.
-- Locks the rows that it removes; skips locked rows; waits for nobody.
-- Returns how many rows it removed, and the keys that still have a row: another call holds the
-- row, or has just changed it.
with mine as materialized (
    select ctid
    from $table
    where key = any ($1::text[]) and limiter = $2::text
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from mine))
    returning ctid
)
select
    (select pg_catalog.count(*) from removed),
    array(
        select distinct key from $table
        where key = any ($1::text[]) and limiter = $2::text and ctid <> all (array(select ctid from removed))
    )

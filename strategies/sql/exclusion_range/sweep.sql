-- Removes ranges that ended a minute ago or earlier, from a range of pages. Parameters, locks
-- and results are as in sweep.sql of internal/rows.
with ended as materialized (
    select ctid
    from $table
    where ctid >= pg_catalog.format('(%s,0)', $1::bigint)::tid and ctid < pg_catalog.format('(%s,0)', $2::bigint)::tid
        and pg_catalog.upper(during) <= (select pglimit.time_of(pglimit.clock_ns() - 60000000000::bigint))
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from ended))
    returning 1
)
select
    (select pg_catalog.count(*) from removed),
    $2::bigint >= pg_catalog.pg_relation_size('$table') / pg_catalog.current_setting('block_size')::bigint,
    pg_catalog.row_security_active('$table'::pg_catalog.regclass),
    case when $3::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

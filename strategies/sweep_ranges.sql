-- Removes ranges that ended a minute ago or longer, from a range of pages. See
-- sweep_buckets.sql, whose parameters, locks and results these are.
with ended as materialized (
    select ctid
    from $table
    where ctid >= format('(%s,0)', $1::bigint)::tid and ctid < format('(%s,0)', $2::bigint)::tid
        and upper(during) + interval '1 minute' <= (select clock_timestamp())
    for update skip locked
),
removed as (
    delete from $table
    where ctid = any (array(select ctid from ended))
    returning 1
)
select
    (select count(*) from removed),
    $2::bigint >= pg_relation_size('$table') / current_setting('block_size')::bigint,
    case when $3::boolean then set_config('synchronous_commit', 'off', true) end

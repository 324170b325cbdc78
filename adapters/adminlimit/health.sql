-- How the database is, whoever uses it. Locks nothing. The times of sessions of others are null without the right to see
-- them.
select
    pg_catalog.current_setting('server_version'),
    pg_catalog.pg_is_in_recovery(),
    a.connections,
    pg_catalog.current_setting('max_connections')::bigint,
    a.waiting,
    coalesce(a.oldest, 0)::float8,
    t.bytes, t.live, t.dead,
    pg_catalog.clock_timestamp()
from (
    select count(*) filter (where backend_type = 'client backend') as connections,
        count(*) filter (where wait_event_type = 'Lock') as waiting,
        extract(epoch from max(pg_catalog.clock_timestamp() - xact_start)) as oldest
    from pg_catalog.pg_stat_activity where pid <> pg_catalog.pg_backend_pid()
) a, (
    select coalesce(sum(pg_catalog.pg_total_relation_size(relid)), 0)::bigint as bytes,
        coalesce(sum(n_live_tup), 0)::bigint as live, coalesce(sum(n_dead_tup), 0)::bigint as dead
    from pg_catalog.pg_stat_all_tables where schemaname = 'pglimit'
) t

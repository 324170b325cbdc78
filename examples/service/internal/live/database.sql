-- What Postgres itself says about the limiter's tables, connections and WAL. Backends report
-- these counters with a delay of up to a second under load, and up to ten when idle.
select
    (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::bigint as wal,
    d.deadlocks,
    a.connections, a.busy, a.waiting,
    t.live, t.dead, t.updates, t.hot_updates
from pg_catalog.pg_stat_database d,
    (select count(*) as connections,
            count(*) filter (where state <> 'idle') as busy,
            count(*) filter (where wait_event_type = 'Lock') as waiting
     from pg_catalog.pg_stat_activity
     where datname = current_database() and backend_type = 'client backend' and pid <> pg_catalog.pg_backend_pid()) a,
    (select coalesce(sum(n_live_tup), 0)::bigint as live, coalesce(sum(n_dead_tup), 0)::bigint as dead,
            coalesce(sum(n_tup_upd), 0)::bigint as updates, coalesce(sum(n_tup_hot_upd), 0)::bigint as hot_updates
     from pg_catalog.pg_stat_all_tables
     where schemaname = 'pglimit') t
where d.datname = current_database()

-- What the database and its server count, whoever caused it.
--
-- No parameters. Locks catalogs only. Returns one row: the deadlocks of this database; of the whole
-- server the bytes of WAL, and when its statistics began, in seconds since 1970: they are lost in a
-- crash, and kept in an orderly restart; and how many sessions that use a table of schema pglimit wait
-- for a lock.
select
    d.deadlocks::float8,
    w.wal_bytes::float8,
    coalesce(extract(epoch from w.stats_reset), 0)::float8,
    (
        select count(distinct waits.pid)
        from pg_catalog.pg_locks waits
        join pg_catalog.pg_locks uses on uses.pid = waits.pid and uses.database = d.datid
        join pg_catalog.pg_class c on c.oid = uses.relation and c.relnamespace = pg_catalog.to_regnamespace('pglimit')
        where not waits.granted
    )::float8
from pg_catalog.pg_stat_database d
cross join pg_catalog.pg_stat_wal w
where d.datname = pg_catalog.current_database()

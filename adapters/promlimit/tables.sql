-- The tables of schema pglimit, except the record of its migrations, as Postgres's statistics describe
-- them.
--
-- No parameters. Locks catalogs only, but waits for whoever has locked a table exclusively, to read
-- its size. Returns a row for each table: its name, the estimated number of rows, dead rows, inserts,
-- updates, HOT updates, deletes, vacuums, blocks of the table and its indexes that were not in shared_buffers,
-- bytes with indexes, 1 if it is unlogged, bytes without indexes, whether the
-- caller may read it, and whether its rows belong to limiters.
--
-- Two estimates of the rows: the statistics are lost in a crash, and reltuples is from the last vacuum.
select
    c.relname::text,
    greatest(s.n_live_tup, c.reltuples, 0)::float8,
    s.n_dead_tup::float8,
    s.n_tup_ins::float8,
    s.n_tup_upd::float8,
    s.n_tup_hot_upd::float8,
    s.n_tup_del::float8,
    (s.vacuum_count + s.autovacuum_count)::float8,
    (io.heap_blks_read + coalesce(io.idx_blks_read, 0))::float8,
    pg_catalog.pg_total_relation_size(c.oid)::float8,
    (c.relpersistence = 'u')::int::float8,
    pg_catalog.pg_relation_size(c.oid),
    pg_catalog.has_schema_privilege(c.relnamespace, 'usage') and pg_catalog.has_table_privilege(c.oid, 'select'),
    exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = 'limiter')
from pg_catalog.pg_class c
join pg_catalog.pg_stat_user_tables s on s.relid = c.oid
join pg_catalog.pg_statio_user_tables io on io.relid = c.oid
where c.relnamespace = pg_catalog.to_regnamespace('pglimit') and c.relname <> 'goose_db_version'
order by c.relname

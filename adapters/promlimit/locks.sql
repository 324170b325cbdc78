-- The locks that sessions hold on the tables of schema pglimit, by mode.
--
-- No parameters. Locks catalogs only. Returns a row for each mode of a table lock, in rising strength:
-- the mode and how many there are, zero included.
select m.mode, count(l.pid)::float8
from unnest(array[
    'AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock',
    'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'
]) with ordinality m (mode, strength)
left join (
    pg_catalog.pg_locks l
    join pg_catalog.pg_class c on c.oid = l.relation and c.relnamespace = pg_catalog.to_regnamespace('pglimit') and c.relkind = 'r'
    join pg_catalog.pg_database d on d.oid = l.database and d.datname = pg_catalog.current_database()
) on l.mode = m.mode and l.granted
group by m.mode, m.strength
order by m.strength

-- Says what keeps this session from granting. Writes and locks nothing.
-- $1 to $4 as differs.sql of internal/postgres, which comes behind it; $5 the names of the tables.
-- Returns whether it is read-only, the first right that the role lacks (empty: none), whether row security
-- hides rows of a table, and which functions are missing or not this build's.
select pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'on',
    coalesce(
        (select pg_catalog.format('%s on pglimit.%s', r.name, t.name)
        from pg_catalog.unnest($5::text[]) t (name), pg_catalog.unnest(array['select', 'insert', 'update']) r (name)
        where not pg_catalog.has_table_privilege(pg_catalog.format('pglimit.%I', t.name), r.name) limit 1),
        (select pg_catalog.format('execute on pglimit.%s', p.proname) from pg_catalog.pg_proc p
        where p.pronamespace operator(pg_catalog.=) 'pglimit'::pg_catalog.regnamespace and not pg_catalog.has_function_privilege(p.oid, 'execute') limit 1),
        ''),
    coalesce((select pg_catalog.bool_or(pg_catalog.row_security_active(pg_catalog.format('pglimit.%I', t.name))) from pg_catalog.unnest($5::text[]) t (name)), false)

-- Which of our functions, columns, constraints, indexes and triggers this database has not, or not as this build has them.
-- What others have added does not matter.
-- $1 and $2 names and sums as this build has them, $3 the version that it brings. $4 the sums on distributed tables, where there is a
-- function on_shards. An empty sum: there is no such thing.
-- An expression, which reads catalogs only. Empty on a database of a newer release, and on one that has no record of migrations.
case when not exists (select from pg_catalog.pg_class c where c.relname operator(pg_catalog.=) 'goose_db_version'
        and c.relnamespace operator(pg_catalog.=) (select n.oid from pg_catalog.pg_namespace n where n.nspname operator(pg_catalog.=) 'pglimit'))
    or exists (select from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) p.pronamespace
        where n.nspname operator(pg_catalog.=) 'pglimit' and p.proname operator(pg_catalog.=) 'schema_version'
            and pg_catalog.substring(p.prosrc, '[0-9]+')::pg_catalog.int8 operator(pg_catalog.>) $3::pg_catalog.int8)
then '{}' else (
    with schema as (select n.oid from pg_catalog.pg_namespace n where n.nspname operator(pg_catalog.=) 'pglimit'),
    things as (
        -- Not the text of a body that is parsed when it is made: servers print it differently. Distributing sets the plan_cache_mode.
        select pg_catalog.concat('function pglimit.', p.proname) as name, pg_catalog.string_agg(pg_catalog.concat_ws(' ',
            p.prosrc, l.lanname, p.proargnames::pg_catalog.text, p.proargmodes::pg_catalog.text, p.pronargdefaults::pg_catalog.text,
            (select pg_catalog.string_agg(t.typname::pg_catalog.text, ',' order by a.n)
                from pg_catalog.unnest(coalesce(p.proallargtypes, p.proargtypes::pg_catalog.oid[])) with ordinality a (oid, n)
                join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) a.oid),
            (select t.typname from pg_catalog.pg_type t where t.oid operator(pg_catalog.=) p.prorettype), p.proretset,
            p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.procost::pg_catalog.numeric, p.prorows::pg_catalog.numeric,
            (select pg_catalog.string_agg(c, ',' order by c) from pg_catalog.unnest(p.proconfig) c
                where not pg_catalog.starts_with(c, 'plan_cache_mode='))
        ), ';' order by p.proargtypes::pg_catalog.text) as fact
        from pg_catalog.pg_proc p join schema s on s.oid operator(pg_catalog.=) p.pronamespace
        join pg_catalog.pg_language l on l.oid operator(pg_catalog.=) p.prolang
        group by p.proname
        union all
        select pg_catalog.format('column pglimit.%s.%s', c.relname, a.attname), pg_catalog.concat_ws(' ', c.relkind, t.typname, a.attnotnull, a.attidentity, a.attgenerated)
        from pg_catalog.pg_class c join schema s on s.oid operator(pg_catalog.=) c.relnamespace
        join pg_catalog.pg_attribute a on a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
        join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) a.atttypid
        where c.relkind operator(pg_catalog.=) any (array['r', 'p', 'v']::pg_catalog."char"[])
        union all
        select pg_catalog.format('constraint %s of pglimit.%s', k.conname, c.relname), pg_catalog.concat_ws(' ', k.contype, (
            select pg_catalog.string_agg(a.attname::pg_catalog.text, ',' order by a.attname) from pg_catalog.pg_attribute a
            where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.=) any (k.conkey)))
        from pg_catalog.pg_constraint k join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) k.conrelid
        join schema s on s.oid operator(pg_catalog.=) c.relnamespace
        where k.contype operator(pg_catalog.=) any (array['c', 'p', 'u', 'x']::pg_catalog."char"[])
        union all
        select pg_catalog.format('index pglimit.%s', c.relname), pg_catalog.concat_ws(' ', i.indisunique, i.indisvalid, i.indkey::pg_catalog.text)
        from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) i.indexrelid
        join schema s on s.oid operator(pg_catalog.=) c.relnamespace
        union all
        select pg_catalog.format('trigger %s of pglimit.%s', g.tgname, c.relname), pg_catalog.concat_ws(' ', g.tgtype, p.proname, g.tgenabled operator(pg_catalog.=) 'D')
        from pg_catalog.pg_trigger g join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) g.tgrelid
        join schema s on s.oid operator(pg_catalog.=) c.relnamespace
        join pg_catalog.pg_proc p on p.oid operator(pg_catalog.=) g.tgfoid
        where not g.tgisinternal
    )
    select coalesce(pg_catalog.array_agg(o.name order by o.name), '{}')
    from rows from (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.text[])) o (name, plain, distributed)
    cross join lateral (select case when exists (select from things t where t.name operator(pg_catalog.=) 'function pglimit.on_shards') then o.distributed else o.plain end as sum) w
    left join things t on t.name operator(pg_catalog.=) o.name
    where w.sum operator(pg_catalog.<>) '' and pg_catalog.md5(t.fact) is distinct from w.sum
) end

-- Runs a statement on each shard of a table that Citus distributes, on all nodes at once, each in a transaction of its
-- own: migrations/functions/citus/on_shards.sql.
-- $1 the table, $2 the statement: its table is %1$s, and it returns n and done.
-- Returns the sum of the numbers, whether all booleans are true, and an error of a node, or null.
select
    coalesce(pg_catalog.sum(pg_catalog.split_part(r.result, ' ', 1)::bigint) filter (where r.success), 0)::bigint,
    coalesce(pg_catalog.bool_and(pg_catalog.split_part(r.result, ' ', 2)::boolean) filter (where r.success), true),
    pg_catalog.min(r.result) filter (where not r.success)
from pg_catalog.run_command_on_all_nodes(pg_catalog.format('select pg_catalog.concat_ws('' '', n, done) from pglimit.on_shards(%L, %L)', $1::text, $2::text)) r

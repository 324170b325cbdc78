-- Runs a statement on each shard that this node of Citus has of a table (see Distribute), one after another. It names the
-- table as %1$s, and returns a number and a boolean.
--
-- n: the sum of the numbers. done: whether all booleans are true.
create or replace function pglimit.on_shards(_table text, statement text, out n bigint, out done boolean)
language plpgsql set search_path = '' as $$
declare
    shard text;
    one record;
begin
    n := 0;
    done := true;
    for shard in
        select shard_name(s.logicalrelid, s.shardid)
        from pg_dist_shard s join pg_dist_placement p on p.shardid = s.shardid join pg_dist_local_group l on l.groupid = p.groupid
        where s.logicalrelid = _table::regclass
    loop
        execute format(statement, shard) into one;
        n := n + one.n;
        done := done and one.done;
    end loop;
end
$$;

-- What functions/token_bucket_rows.sql does, in a statement for each key, so that Citus sends it to its shard as it is.
create or replace function pglimit.token_bucket_rows(_keys text[], _limiters text[]) returns bigint[]
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
    b bigint[];
    rows bigint[];
begin
    for i in 1 .. cardinality(_keys) loop
        select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0),
            coalesce(t.paused_ns, 0)] into b
        from pglimit.token_bucket t where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]);
        rows := rows || array[coalesce(b, '{0,0,0,0,0,0}')];
    end loop;
    return rows;
end
$$;

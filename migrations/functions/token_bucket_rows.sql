-- Reads rows of token_bucket: five numbers each, as for token_bucket_read, and paused_ns (0: null). Zeros: there is none, or the key is null.
-- Locks nothing. _keys, _limiters: as for token_bucket_decide.
create or replace function pglimit.token_bucket_rows(_keys text[], _limiters text[]) returns bigint[]
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
    return array(
        select array[coalesce(t.full_ns, 0), coalesce(t.token_ns, 0), coalesce(t.at_ns, 0), coalesce(t.leased_ns, 0),
            coalesce(t.until_ns, 0), coalesce(t.paused_ns, 0)]
        from pglimit.token_bucket_asked(_keys, _limiters, null, null, null, null) k
        left join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter);
end
$$;

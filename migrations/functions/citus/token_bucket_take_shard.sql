-- What token_bucket_take_many does for requests by themselves, where the table is distributed: see there for parameters, locks
-- and results. It takes from buckets that are asked for alike together, see token_bucket_take_alike. All else is for
-- token_bucket_decide.
--
-- _key is one of _keys: Citus runs the function where that is. All must be in one shard: there is one clock for a bucket,
-- and no commit in two phases. Else it fails with SQLSTATE 40001, and has taken nothing. relaxed: as for token_bucket_take.
create or replace function pglimit.token_bucket_take_shard(
    _key text, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], patience text, _calendars text[], relaxed boolean,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    n constant int := cardinality(_keys);
    alike record;
    taken record;
    said text;
begin
    if pglimit.token_bucket_valid(_keys, _limiters, _tokens_ns, _windows_ns, asks, members, wants, units, aheads_ns, null, _calendars) is not true then
        raise exception 'token_bucket_take_shard: an argument is null, too short or negative' using errcode = 'invalid_parameter_value';
    elsif 1 < (select count(distinct pg_catalog.get_shard_id_for_distribution_column('pglimit.token_bucket', u.key)) from unnest(_key || _keys) u(key)) then
        raise exception 'pglimit: the keys are in several shards' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask for each bucket by itself.';
    end if;
    said := pglimit.transaction_settings(patience, relaxed);
    for alike in
        select array_agg(i order by i) as numbers, coalesce(_limiters[i], _limiters[1]) as limiter, coalesce(_tokens_ns[i], _tokens_ns[1]) as token_ns,
            coalesce(_windows_ns[i], _windows_ns[1]) as window_ns, coalesce(asks[i], asks[1]) as ask,
            coalesce(_calendars[i], case when cardinality(_calendars) = 1 then _calendars[1] end) as calendar
        from generate_series(1, n) i
        where wants is null
        group by 2, 3, 4, 5, 6
        order by min(i)
    loop
        taken := pglimit.token_bucket_take_alike(_keys, alike.numbers, alike.limiter, alike.token_ns, alike.window_ns, alike.ask, alike.calendar);
        usual := usual || taken.usual;
        rest := rest || taken.rest;
        said := pg_catalog.set_config('lock_timeout', '1ms', true); -- the next are not behind these in the order of the keys
    end loop;
    if coalesce(cardinality(usual) / 4, 0) + coalesce(cardinality(rest) / 8, 0) = n then
        return;
    end if;
    for i in 1 .. coalesce(cardinality(usual) / 4, 0) loop
        _keys[usual[i][1]] := null; -- it is done
    end loop;
    for i in 1 .. coalesce(cardinality(rest) / 8, 0) loop
        _keys[rest[i][1]] := null;
    end loop;
    taken := pglimit.token_bucket_decide(_keys, _limiters, _tokens_ns, _windows_ns, members,
        coalesce(wants, array(select coalesce(asks[i], asks[1]) from generate_series(1, n) i)), units, aheads_ns, null, wants is not null or n = 1, _calendars);
    grants := taken.grants;
    rest := taken.buckets || rest;
end
$$;

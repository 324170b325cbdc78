-- What token_bucket_take_many does for requests by themselves, where the table is distributed by Citus: see there for
-- parameters and locks. It takes from buckets that are asked for alike together, see token_bucket_take_alike. All
-- else is decided one request after another, in the order of the keys. It fails if that takes 100 ms, see in_time: what was
-- granted first would be dated too early.
--
-- _key is one of _keys: Citus runs the function where that is. All must be in one shard: there is one clock for a bucket,
-- and no commit in two phases. Else it fails with SQLSTATE 40001, and has taken nothing: ask for each bucket by itself.
-- Where the table is not distributed any more it does nothing, and all that it returns is null. relaxed: as for
-- token_bucket_take.
--
-- usual: as of token_bucket_take_many. rest: eight numbers for each other request: its number (that of its bucket, without
-- wants), and the seven of token_bucket_take. Several requests for a bucket are decided at several times.
create or replace function pglimit.token_bucket_take_shard(
    _key text, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], patience text, _calendars text[], relaxed boolean,
    out usual bigint[], out rest bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
    began_ns constant bigint := pglimit.clock_ns();
    n constant int := cardinality(_keys);
    alike record;
    taken record;
    r record;
    b bigint[];
    one bigint[];
    late boolean := false;
    said text;
begin
    if pglimit.token_bucket_valid(_keys, _limiters, _tokens_ns, _windows_ns, asks, members, wants, units, aheads_ns, null, _calendars) is not true then
        raise exception 'token_bucket_take_shard: an argument is null, too short or negative' using errcode = 'invalid_parameter_value';
    elsif not exists (select from pg_catalog.pg_dist_partition p where p.logicalrelid = 'pglimit.token_bucket'::regclass) then
        return;
    elsif 1 < (select count(distinct pg_catalog.get_shard_id_for_distribution_column('pglimit.token_bucket', u.key)) from unnest(_key || _keys) u(key)) then
        raise exception 'pglimit: the keys are in several shards' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask for each bucket by itself.';
    end if;
    said := pglimit.transaction_settings(patience, relaxed);
    if wants is not null then
        null; -- each by itself
    elsif 1 = all (array[cardinality(_limiters), cardinality(_tokens_ns), cardinality(_windows_ns), cardinality(asks), coalesce(cardinality(_calendars), 1)]) then
        select a.usual, a.rest into usual, rest
        from pglimit.token_bucket_take_alike(_keys, _limiters[1], _tokens_ns[1], _windows_ns[1], asks[1], _calendars[1]) a;
        if coalesce(cardinality(usual) / 4, 0) + coalesce(cardinality(rest) / 8, 0) = n then
            return;
        end if;
    else
        for alike in
            select array_agg(k.number order by k.number) as numbers, array_agg(k.key order by k.number) as keys, k.limiter, k.token_ns, k.window_ns, k.ask, c.calendar
            from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks, null) k
            cross join lateral (select coalesce(_calendars[k.number], case when cardinality(_calendars) = 1 then _calendars[1] end) as calendar) c
            group by k.limiter, k.token_ns, k.window_ns, k.ask, c.calendar
            order by min(k.number)
        loop
            select a.usual, a.rest into taken
            from pglimit.token_bucket_take_alike(alike.keys, alike.limiter, alike.token_ns, alike.window_ns, alike.ask, alike.calendar) a;
            for i in 1 .. coalesce(cardinality(taken.usual) / 4, 0) loop
                usual := usual || array[array[alike.numbers[taken.usual[i][1]], taken.usual[i][2], taken.usual[i][3], taken.usual[i][4]]];
            end loop;
            for i in 1 .. coalesce(cardinality(taken.rest) / 8, 0) loop
                b := array[alike.numbers[taken.rest[i][1]]];
                for j in 2 .. 8 loop
                    b[j] := taken.rest[i][j];
                end loop;
                rest := rest || array[b];
            end loop;
            said := pg_catalog.set_config('lock_timeout', '1ms', true); -- the next are not behind these in the order of the keys
        end loop;
    end if;
    for i in 1 .. coalesce(cardinality(usual) / 4, 0) loop
        _keys[usual[i][1]] := null; -- it is done
    end loop;
    for i in 1 .. coalesce(cardinality(rest) / 8, 0) loop
        _keys[rest[i][1]] := null;
    end loop;
    for r in
        select k.number, k.key, k.limiter, k.token_ns, k.window_ns, j.request, coalesce(wants[j.request], k.ask) as want, coalesce(units[j.request], greatest(1, k.ask)) as unit,
            coalesce(aheads_ns[j.request], 0) as ahead_ns, coalesce(_calendars[k.number], case when cardinality(_calendars) = 1 then _calendars[1] end) as calendar
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks, null) k
        join (select u.member, u.request from unnest(members) with ordinality u(member, request)
            union all select i, i from generate_series(1, n) i where members is null) j on j.member = k.number
        where k.key is not null
        order by k.number, j.request
    loop
        one := case when r.ahead_ns > 0 or r.want = 0
            then pglimit.token_bucket_decide_one(r.key, r.limiter, r.token_ns, r.window_ns, r.want, r.unit, r.ahead_ns, null, r.calendar)
            else pglimit.token_bucket_take(r.key, r.limiter, r.token_ns, r.window_ns, r.want, r.unit, null, null, r.calendar) end;
        rest := rest || array[r.request || one];
        late := true;
    end loop;
    if late then
        said := pglimit.in_time(began_ns);
    end if;
end
$$;

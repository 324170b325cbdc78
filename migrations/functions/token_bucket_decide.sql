-- Decides whatever is not the usual case of token_bucket_take or token_bucket_take_many: for any number of
-- buckets and requests, by themselves or in groups.
--
-- First it looks (a plain read, and the clock behind it) and decides in numbers. If nothing is granted, it returns:
-- it has locked and written nothing. Otherwise it writes: updates the rows that are still as it saw them, and inserts
-- those that were missing, each in the order of the keys. If another call has changed one meanwhile, or 100 ms
-- have passed, it fails with SQLSTATE 40001, and has taken nothing: call again. (Who inserts waits for inserts only, so
-- two such calls cannot wait for each other. With one that has locked in order, that ends with lock_timeout.)
--
-- If sure is true, and always if there is only one bucket, it does not write by that look, but locks the rows of
-- which tokens are asked, in the order of the keys, and inserts the missing ones, full. Then, a second time, it looks, decides and
-- writes; nobody can be faster now. A row that is ahead of the clock is corrected, once, by a denial too.
--
-- _keys: the buckets, distinct, in the bytewise order of key and limiter. A null is a bucket to leave alone, with
-- its requests. _limiters, _tokens_ns (price of a token), _windows_ns (of a burst): an element for each, or one for all.
-- wants: how many tokens each request asks for, in the order in which they are decided; 0 is a peek. members: the
-- number of its bucket (null: request i is for bucket i). units: it is granted in whole multiples of that (null:
-- all or nothing). aheads_ns: it is also granted what comes back within that time (null: none is).
-- lasts: group i has the requests lasts[i - 1] + 1 to lasts[i]; if they are several, they are for different
-- buckets, each all or nothing, and if one is not granted, none is. (Null: each request is by itself.)
--
-- grants: tokens for each request. buckets: eight numbers for each bucket: its number, and the seven of
-- token_bucket_take. Must be called with enable_seqscan and jit off.
create or replace function pglimit.token_bucket_decide(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean,
    out grants bigint[], out buckets bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
    n constant int := cardinality(_keys);
    m constant int := cardinality(wants);
    now_ns bigint := pglimit.clock_ns();
    seen bigint[]; -- the rows; zeros where there is none
    news bigint[]; -- what they mean now, as of token_bucket_read, and with what is taken
    granted bigint[]; -- tokens of each bucket
    asked boolean[]; -- buckets of which tokens are asked
    writes int[]; -- buckets whose rows are to be written
    written int;
    first bigint; -- request of a group
    last bigint;
    fallen boolean; -- one of its requests cannot be granted
    i bigint; -- bucket
    room_ns bigint;
    unit bigint;
begin
    if pglimit.token_bucket_valid(_keys, _limiters, _tokens_ns, _windows_ns, members, wants, units, aheads_ns, lasts) is not true then
        raise exception 'token_bucket_decide: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    if 0 < any (wants) then
        lock table pglimit.token_bucket in row exclusive mode; -- before the read: see token_bucket_take
    end if;
    for try in 1 .. 2 loop
        if try = 2 then
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            select k.key, k.limiter, now_ns, k.token_ns, now_ns
            from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, '{1}') k where asked[k.number]
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
        end if;
        select array_agg(array[coalesce(t.full_ns, 0), coalesce(t.token_ns, 0), coalesce(t.at_ns, 0), coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)])
        into seen
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, '{1}') k
        left join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        select array_agg(case
            when seen[k.number][3] = 0 then array[now_ns, k.token_ns, now_ns, 0, 0]
            when seen[k.number][2] = k.token_ns and seen[k.number][4] = 0 and seen[k.number][3] <= now_ns + pglimit.step_ns()
                then array[greatest(seen[k.number][1], seen[k.number][3], now_ns), k.token_ns, greatest(seen[k.number][3], now_ns), 0, 0]
            else pglimit.token_bucket_read(array[seen[k.number][1], seen[k.number][2], seen[k.number][3], seen[k.number][4], seen[k.number][5]], now_ns, k.token_ns)
        end)
        into news
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, '{1}') k;
        grants := array_fill(0::bigint, array[m]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        for g in 1 .. coalesce(cardinality(lasts), m) loop
            first := coalesce(lasts[g - 1], g - 1) + 1;
            last := coalesce(lasts[g], g);
            fallen := false;
            for j in first .. last loop
                i := coalesce(members[j], j);
                continue when _keys[i] is null;
                room_ns := greatest(0, coalesce(_windows_ns[i], _windows_ns[1]) - news[i][4]);
                unit := coalesce(units[j], greatest(1, wants[j]));
                -- A unit that is larger than the room would be used before leased tokens have come back.
                if unit <= room_ns / news[i][2] then
                    grants[j] := least(wants[j], greatest(0, news[i][3] + room_ns - news[i][1] + coalesce(aheads_ns[j], 0)) / news[i][2]) / unit * unit;
                end if;
                asked[i] := asked[i] or wants[j] > 0;
                fallen := fallen or last > first and grants[j] < wants[j];
            end loop;
            for j in first .. last loop
                i := coalesce(members[j], j);
                grants[j] := case when fallen then 0 else grants[j] end;
                news[i][1] := news[i][1] + grants[j] * news[i][2];
                granted[i] := granted[i] + grants[j];
            end loop;
        end loop;
        writes := array(select b from generate_series(1, n) b where granted[b] > 0 or asked[b] and seen[b][3] > now_ns + pglimit.step_ns());
        exit when writes = '{}';
        continue when try = 1 and (sure or n = 1);

        foreach i in array writes loop
            continue when granted[i] > 0;
            -- After a step of the clock: it keeps its price.
            news[i:i] := array[pglimit.token_bucket_read(array[seen[i][1], seen[i][2], seen[i][3], seen[i][4], seen[i][5]], now_ns, seen[i][2])];
        end loop;
        with updates as (
            update pglimit.token_bucket t
            set full_ns = news[b][1], token_ns = news[b][2], at_ns = news[b][3], leased_ns = nullif(news[b][4], 0), until_ns = nullif(news[b][5], 0), padding = null
            from unnest(writes) b
            where t.key = any (array[_keys[b]]) and t.limiter = any (array[coalesce(_limiters[b], _limiters[1])]) -- and it is as it was seen
                and (t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0)) is not distinct from (seen[b][1], seen[b][2], seen[b][3], seen[b][4])
            returning 1
        ), inserts as (
            insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
            select _keys[b], coalesce(_limiters[b], _limiters[1]), news[b][1], news[b][2], news[b][3]
            from unnest(writes) b
            where seen[b][3] = 0
            order by b
            on conflict do nothing
            returning 1
        )
        select (select count(*) from updates) + (select count(*) from inserts) into written;
        if written < cardinality(writes) then
            raise exception 'pglimit: a bucket has changed meanwhile' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
        end if;
        if try = 1 then -- it may have waited; behind a lock it has not
            perform pglimit.in_time(now_ns);
        end if;
        exit;
    end loop;
    select array_agg(case
        when b = any (writes) then array[b, news[b][3], granted[b], news[b][1], news[b][2], news[b][3], news[b][4], news[b][5]]
        else array[b, news[b][3], 0, seen[b][1], seen[b][2], seen[b][3], seen[b][4], seen[b][5]]
    end)
    into buckets from generate_series(1, n) b
    where _keys[b] is not null;
end
$$;

-- Decides whatever is not the usual case of token_bucket_take or token_bucket_take_many: for any number of
-- buckets and requests, by themselves or in groups.
--
-- First it looks (a plain read, and the clock behind it) and decides in numbers. If nothing is granted, it returns:
-- it has locked and written nothing. Otherwise it writes, in the order of the keys: updates the rows that are
-- still as it saw them, and inserts those that were missing. If another call has changed one meanwhile, or 100 ms
-- have passed, it fails with SQLSTATE 40001, and has taken nothing: call again.
--
-- If sure is true, and always if there is only one bucket, it does not write by that look, but locks the rows of
-- which tokens are asked, in that order, and inserts the missing ones, full. Then, a second time, it looks, decides and
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
    bucket bigint[];
    news bigint[]; -- what the rows mean now, as of token_bucket_read, and with what is taken
    ends_ns bigint[]; -- full_ns may be as late as that
    asked boolean[]; -- buckets of which tokens are asked
    writes boolean[]; -- rows to write
    first bigint; -- request of a group
    last bigint;
    fallen boolean; -- one of its requests cannot be granted
    i bigint; -- bucket
    unit bigint;
    token_ns bigint;
begin
    if (n > 0 and m > 0 and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n)
        and array_position(_limiters, null) is null and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and pglimit.max_window_ns() >= all (_windows_ns)
        and 0 <= all (wants) and sure is not null and (units is null or cardinality(units) = m and 1 <= all (units))
        and (aheads_ns is null or cardinality(aheads_ns) = m and 0 <= all (aheads_ns) and pglimit.max_window_ns() >= all (aheads_ns))
        and (members is null and m = n or cardinality(members) = m and 1 <= all (members) and n >= all (members))
        and (lasts is null or lasts[cardinality(lasts)] = m and 0 <= all (lasts) and m >= all (lasts))) is not true then
        raise exception 'token_bucket_decide: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    if 0 < any (wants) then
        lock table pglimit.token_bucket in row exclusive mode; -- before the read: see token_bucket_take
    end if;
    for try in 1 .. 2 loop
        buckets := '{}';
        for i in 1 .. n loop
            if try = 2 and asked[i] then
                insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
                values (_keys[i], coalesce(_limiters[i], _limiters[1]), now_ns, coalesce(_tokens_ns[i], _tokens_ns[1]), now_ns)
                on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
            end if;
            select array[i, 0, 0, t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into bucket
            from pglimit.token_bucket t where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]);
            buckets := buckets || array[coalesce(bucket, array[i, 0, 0, 0, 0, 0, 0, 0])];
        end loop;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead

        news := '{}';
        for i in 1 .. n loop
            token_ns := coalesce(_tokens_ns[i], _tokens_ns[1]);
            bucket := case
                when buckets[i][6] = 0 then array[now_ns, token_ns, now_ns, 0, 0]
                when buckets[i][5] = token_ns and buckets[i][7] = 0 and buckets[i][6] <= now_ns + pglimit.step_ns()
                    then array[greatest(buckets[i][4], buckets[i][6], now_ns), token_ns, greatest(buckets[i][6], now_ns), 0, 0]
                else pglimit.token_bucket_read(array[buckets[i][4], buckets[i][5], buckets[i][6], buckets[i][7], buckets[i][8]], now_ns, token_ns)
            end;
            news := news || array[bucket];
            buckets[i][2] := bucket[3];
            ends_ns[i] := bucket[3] + greatest(0, coalesce(_windows_ns[i], _windows_ns[1]) - bucket[4]);
        end loop;

        grants := array_fill(0::bigint, array[m]);
        asked := array_fill(false, array[n]);
        first := 1;
        for g in 1 .. coalesce(cardinality(lasts), m) loop
            last := coalesce(lasts[g], g);
            fallen := false;
            for j in first .. last loop
                i := coalesce(members[j], j);
                unit := coalesce(units[j], greatest(1, wants[j]));
                -- A unit that is larger than the room would be used before leased tokens have come back.
                if unit <= (ends_ns[i] - news[i][3]) / news[i][2] and _keys[i] is not null then
                    grants[j] := least(wants[j], greatest(0, ends_ns[i] - news[i][1] + coalesce(aheads_ns[j], 0)) / news[i][2]) / unit * unit;
                end if;
                asked[i] := asked[i] or wants[j] > 0 and _keys[i] is not null;
                fallen := fallen or last > first and grants[j] < wants[j];
            end loop;
            for j in first .. last loop
                i := coalesce(members[j], j);
                grants[j] := case when fallen then 0 else grants[j] end;
                news[i][1] := news[i][1] + grants[j] * news[i][2];
                buckets[i][3] := buckets[i][3] + grants[j];
            end loop;
            first := last + 1;
        end loop;
        for i in 1 .. n loop
            writes[i] := buckets[i][3] > 0 or asked[i] and buckets[i][6] > now_ns + pglimit.step_ns();
        end loop;
        exit when not true = any (writes);
        continue when try = 1 and (sure or n = 1);

        for i in 1 .. n loop
            continue when not writes[i];
            bucket := case
                when buckets[i][3] > 0 then array[news[i][1], news[i][2], news[i][3], news[i][4], case when news[i][4] > 0 then news[i][5] else 0 end]
                -- After a step of the clock: it keeps its price.
                else pglimit.token_bucket_read(array[buckets[i][4], buckets[i][5], buckets[i][6], buckets[i][7], buckets[i][8]], now_ns, buckets[i][5])
            end;
            if buckets[i][6] = 0 then
                insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
                values (_keys[i], coalesce(_limiters[i], _limiters[1]), bucket[1], bucket[2], bucket[3])
                on conflict do nothing;
            else
                update pglimit.token_bucket t
                set full_ns = bucket[1], token_ns = bucket[2], at_ns = bucket[3], leased_ns = nullif(bucket[4], 0), until_ns = nullif(bucket[5], 0), padding = null
                where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]) -- and it is as it was seen
                    and t.full_ns = buckets[i][4] and t.token_ns = buckets[i][5] and t.at_ns = buckets[i][6] and coalesce(t.leased_ns, 0) = buckets[i][7];
            end if;
            if not found then
                raise exception 'pglimit: a bucket has changed meanwhile' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
            end if;
            buckets[i:i] := array[array[i, bucket[3], buckets[i][3]] || bucket];
        end loop;
        if try = 1 then -- it may have waited
            perform pglimit.in_time(now_ns);
        end if;
        exit;
    end loop;
end
$$;

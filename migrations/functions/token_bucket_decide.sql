-- Decides whatever is not the usual case of token_bucket_take or token_bucket_take_many: for any number of buckets
-- and requests, by themselves or in groups.
--
-- It looks (a plain read, and the clock behind it) and decides in numbers. If nothing is granted, that is all. If sure
-- is true, it then locks the rows of which tokens are asked, in the order of the keys (missing ones are inserted,
-- full), looks and decides once more, and writes: nobody can be faster now. Otherwise it writes at once, and fails with
-- SQLSTATE 40001 if another call has changed a row since the look, or 100 ms have passed: it has taken nothing then,
-- call again. (It waits for rows, and then for inserts, each in the order of the keys: two such calls do not wait for
-- each other.) A row that is ahead of the clock is corrected, once, by a denial too.
--
-- _keys: the buckets, distinct, in the bytewise order of key and limiter. A null is a bucket to leave alone, with
-- its requests. _limiters, _tokens_ns (price of a token), _windows_ns (of a burst) and _calendars (as for token_bucket_take;
-- null: no limit has one): an element for each, or one for all.
-- wants: how many tokens each request asks for, in the order in which they are decided; 0 is a peek. members: the
-- number of its bucket (null: request i is for bucket i). units: it is granted in whole multiples of that (null:
-- all or nothing). aheads_ns: it is also granted what comes back within that time (null: none is).
-- lasts: group i has the requests lasts[i - 1] + 1 to lasts[i]; if they are several, they are for different
-- buckets, each all or nothing, and if one is not granted, none is. (Null: each request is by itself.)
-- None of this is checked here.
--
-- grants: tokens for each request. buckets: eight numbers for each bucket: its number, and the seven of
-- token_bucket_take. Must be called with enable_seqscan and jit off, and with the table's lock, see there.
create or replace function pglimit.token_bucket_decide(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean, _calendars text[] default null,
    out grants bigint[], out buckets bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
    n constant int := cardinality(_keys);
    now_ns bigint;
    ends_ns bigint[]; -- of the windows of the calendars
    seen bigint[]; -- the rows: as for token_bucket_read; zeros where there is none
    news bigint[]; -- what the rows mean now, and with what is taken
    moves boolean[]; -- whether a row is of a bucket, or of a window that is far ahead: its times move with a step of the clock
    rows bigint[]; -- as they are after the call
    granted bigint[]; -- tokens of each bucket
    asked boolean[]; -- buckets of which tokens are asked
    fallen boolean; -- a request of the group cannot be granted
    i bigint; -- bucket
    room_ns bigint;
    unit bigint;
    writes int[]; -- buckets whose rows are to be written
    written int;
begin
    for try in case when sure then 1 else 2 end .. 2 loop
        -- The look's snapshot is older than its clock: compared with an older time, a new row would be ahead.
        select min(c.now_ns), array_agg(k.ends_ns), array_agg(b."row"), array_agg(case
                when k.ends_ns is null and b."row"[2] = k.token_ns and b."row"[5] = 0 and b."row"[3] <= c.now_ns + pglimit.step_ns()
                    then array[greatest(b."row"[1], b."row"[3], c.now_ns), k.token_ns, greatest(b."row"[3], c.now_ns), 0, 0]
                else pglimit.token_bucket_read(b."row", c.now_ns, k.token_ns, k.ends_ns)
            end),
            -- In a calendar window nothing is refilled, too much or too little; but its end moves after a long step.
            array_agg(t.leased_ns > 0 or t.until_ns is null and t.at_ns > 0 or t.at_ns > c.now_ns + pglimit.window_step_ns())
        into now_ns, ends_ns, seen, news, moves
        from (select c.now_ns, pglimit.window_ends_ns(_calendars, c.now_ns) as ends_ns from (select pglimit.clock_ns() as now_ns offset 0) c offset 0) c
        cross join lateral pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, '{1}', c.ends_ns) k
        left join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter
        cross join lateral (select array[coalesce(t.full_ns, 0), coalesce(t.token_ns, k.token_ns), coalesce(t.at_ns, 0), coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] as "row" offset 0) b;
        grants := array_fill(0::bigint, array[cardinality(wants)]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        for g in 1 .. cardinality(coalesce(lasts, wants)) loop
            fallen := false;
            for j in coalesce(lasts[g - 1], g - 1) + 1 .. coalesce(lasts[g], g) loop
                i := coalesce(members[j], j);
                continue when _keys[i] is null;
                room_ns := coalesce(_windows_ns[i], _windows_ns[1]) - news[i][4];
                unit := coalesce(units[j], greatest(1, wants[j]));
                -- A unit that is larger than the room would be used before leased tokens have come back.
                if unit <= room_ns / news[i][2] then
                    grants[j] := least(wants[j], greatest(0, case when news[i][4] = 0 and news[i][5] > 0 then news[i][5] else news[i][3] end + room_ns - news[i][1] + coalesce(aheads_ns[j], 0)) / news[i][2]) / unit * unit;
                end if;
                asked[i] := asked[i] or wants[j] > 0;
                fallen := fallen or grants[j] = 0;
            end loop;
            for j in coalesce(lasts[g - 1], g - 1) + 1 .. coalesce(lasts[g], g) loop
                i := coalesce(members[j], j);
                grants[j] := case when fallen then 0 else grants[j] end;
                news[i][1] := news[i][1] + grants[j] * news[i][2];
                granted[i] := granted[i] + grants[j];
            end loop;
        end loop;
        writes := array(select b from generate_series(1, n) b where granted[b] > 0 or asked[b] and moves[b] and seen[b][3] > now_ns + pglimit.step_ns());
        rows := seen;
        exit when writes = '{}';
        if try = 1 then
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            select _keys[b], coalesce(_limiters[b], _limiters[1]), now_ns, news[b][2], now_ns from generate_series(1, n) b where asked[b] order by b
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
            continue;
        end if;
        foreach i in array writes loop
            -- Without a grant, the clock has stepped back: a bucket's row keeps its price.
            if granted[i] > 0 or seen[i][4] = 0 and seen[i][5] > 0 then -- by element: a slice copies all of them
                rows[i][1] := news[i][1]; rows[i][2] := news[i][2]; rows[i][3] := news[i][3]; rows[i][4] := news[i][4]; rows[i][5] := news[i][5];
            else
                rows[i:i] := array[pglimit.token_bucket_read(array[seen[i][1], seen[i][2], seen[i][3], seen[i][4], seen[i][5]], now_ns, seen[i][2])];
            end if;
        end loop;
        with updates as (
            update pglimit.token_bucket t
            set full_ns = rows[b][1], token_ns = rows[b][2], at_ns = rows[b][3], leased_ns = nullif(rows[b][4], 0), until_ns = nullif(rows[b][5], 0), padding = null
            from unnest(writes) b
            where t.key = any (array[_keys[b]]) and t.limiter = any (array[coalesce(_limiters[b], _limiters[1])]) -- and it is as it was seen
                and (t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0))
                    is not distinct from (seen[b][1], seen[b][2], seen[b][3], seen[b][4], seen[b][5])
            returning 1
        ), inserts as (
            insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
            select _keys[b], coalesce(_limiters[b], _limiters[1]), rows[b][1], rows[b][2], rows[b][3], nullif(rows[b][5], 0)
            from unnest(writes) b
            where seen[b][3] = 0
            order by b
            on conflict do nothing
            returning 1
        )
        select (select count(*) from updates) + (select count(*) from inserts) into written;
        -- It may have waited; behind a lock it has not.
        exit when sure and written = cardinality(writes) or pglimit.in_time(now_ns, written = cardinality(writes));
    end loop;
    -- The row of a bucket, or of a window that was far ahead, is told to who has a calendar window as it means there.
    select array_agg(array[b, news[b][3], granted[b]] || case when moves[b] and ends_ns[b] is not null
        then array[news[b][1], news[b][2], news[b][3], news[b][4], news[b][5]] else array[rows[b][1], rows[b][2], rows[b][3], rows[b][4], rows[b][5]] end)
    into buckets from generate_series(1, n) b where _keys[b] is not null;
end
$$;

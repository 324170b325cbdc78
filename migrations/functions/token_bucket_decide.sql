-- Decides whatever is not the usual case of token_bucket_take or token_bucket_take_many: for any number of buckets
-- and requests, by themselves or in groups.
--
-- It looks (plain reads, and the clock behind them) and decides in numbers. If nothing is granted, that is all. If
-- sure is true, it then locks the rows of which tokens are asked, in the order of the keys (missing ones are
-- inserted, full), looks and decides once more, and writes: nobody can be faster now. Otherwise it writes at once, in
-- the order of the keys, and fails with SQLSTATE 40001 if another call has changed a row since the look, or it had to
-- wait, see in_time: it has taken nothing then, call again. A row that is ahead of the clock is corrected, once, by a
-- denial too.
--
-- _keys: the buckets, distinct, in the bytewise order of key and limiter. A null is a bucket to leave alone, with its
-- requests. _limiters, _tokens_ns (price of a token), _windows_ns (of a burst) and _calendars (as for
-- token_bucket_take; null: no limit has one): an element for each, or one for all.
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
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean,
    _calendars text[] default null,
    out grants bigint[], out buckets bigint[]
)
language plpgsql set search_path = '' as $$
declare
    n constant int := cardinality(_keys);
    now_ns bigint;
    ends_ns bigint[]; -- of the windows of the calendars
    b bigint[]; -- a row: five numbers as for token_bucket_read, zeros where there is none
    seen bigint[]; -- the rows, one behind the other
    news bigint[]; -- what they mean now, and with what is taken
    rows bigint[]; -- as they are after the call
    granted bigint[]; -- tokens of each bucket
    asked boolean[]; -- buckets of which tokens are asked
    g int; -- group
    fallen boolean; -- a request of it cannot be granted
    i int; -- bucket
    k int; -- its row is the numbers k + 1 to k + 5
    room_ns bigint;
    unit bigint;
    from_ns bigint; -- see tokens_there
    written boolean;
    complete boolean;
begin
    for try in case when sure then 1 else 2 end .. 2 loop
        -- By element: a slice, and whatever is appended that is no element, copies the array.
        seen := array_fill(0::bigint, array[n * 5]);
        for i in 1 .. n loop
            if _keys[i] is null then
                b := null;
            else
                select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into b
                from pglimit.token_bucket t where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]);
            end if;
            b := coalesce(b, array[0, coalesce(_tokens_ns[i], _tokens_ns[1]), 0, 0, 0]);
            k := i * 5 - 5;
            seen[k + 1] := b[1]; seen[k + 2] := b[2]; seen[k + 3] := b[3]; seen[k + 4] := b[4]; seen[k + 5] := b[5];
        end loop;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_ends_ns(_calendars, now_ns);
        news := array_fill(0::bigint, array[n * 5]);
        for i in 1 .. n loop
            k := i * 5 - 5;
            b := pglimit.token_bucket_read(array[seen[k + 1], seen[k + 2], seen[k + 3], seen[k + 4], seen[k + 5]], now_ns,
                coalesce(_tokens_ns[i], _tokens_ns[1]), ends_ns[least(i, cardinality(ends_ns))]);
            news[k + 1] := b[1]; news[k + 2] := b[2]; news[k + 3] := b[3]; news[k + 4] := b[4]; news[k + 5] := b[5];
        end loop;
        grants := array_fill(0::bigint, array[cardinality(wants)]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        g := 1;
        fallen := false;
        for j in 1 .. cardinality(wants) loop
            i := coalesce(members[j], j);
            continue when _keys[i] is null;
            k := i * 5 - 5;
            room_ns := coalesce(_windows_ns[i], _windows_ns[1]) - news[k + 4];
            unit := coalesce(units[j], greatest(1, wants[j]));
            -- A unit that is larger than the room would be used before leased tokens have come back.
            if unit <= room_ns / news[k + 2] then
                from_ns := case when news[k + 4] = 0 and news[k + 5] > 0 then news[k + 5] else news[k + 3] end;
                grants[j] := greatest(0, least(wants[j], pglimit.tokens_there(
                    news[k + 1], from_ns, news[k + 2], room_ns + coalesce(aheads_ns[j], 0)))) / unit * unit;
            end if;
            asked[i] := asked[i] or wants[j] > 0;
            granted[i] := granted[i] + grants[j];
            news[k + 1] := news[k + 1] + grants[j] * news[k + 2];
            continue when lasts is null;
            fallen := fallen or grants[j] = 0;
            continue when j < lasts[g];
            for f in coalesce(lasts[g - 1], 0) + 1 .. case when fallen then j else 0 end loop
                i := coalesce(members[f], f);
                granted[i] := granted[i] - grants[f];
                news[i * 5 - 4] := news[i * 5 - 4] - grants[f] * news[i * 5 - 3];
                grants[f] := 0;
            end loop;
            g := g + 1;
            fallen := false;
        end loop;
        complete := true;
        written := false;
        rows := seen;
        for i in 1 .. n loop
            k := i * 5 - 5;
            if granted[i] > 0 then
                b := array[news[k + 1], news[k + 2], news[k + 3], news[k + 4], news[k + 5]];
            elsif asked[i] and seen[k + 3] > now_ns + (
                case when seen[k + 4] = 0 and seen[k + 5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end)
                and pglimit.writable() then
                -- The clock has stepped back: a bucket's row keeps its price.
                b := case when seen[k + 4] = 0 and seen[k + 5] > 0 then array[news[k + 1], news[k + 2], news[k + 3], news[k + 4], news[k + 5]]
                    else pglimit.token_bucket_read(array[seen[k + 1], seen[k + 2], seen[k + 3], seen[k + 4], seen[k + 5]], now_ns, seen[k + 2]) end;
            else
                continue;
            end if;
            written := true;
            exit when try = 1;
            if seen[k + 3] = 0 then
                insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_keys[i], coalesce(_limiters[i], _limiters[1]), b[1], b[2], b[3], nullif(b[5], 0))
                on conflict do nothing;
            else
                update pglimit.token_bucket t
                set full_ns = b[1], token_ns = b[2], at_ns = b[3], leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0),
                    padding = null
                where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]) -- and it is as it was seen
                    and array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)]
                        = array[seen[k + 1], seen[k + 2], seen[k + 3], seen[k + 4], seen[k + 5]];
            end if;
            complete := complete and found;
            rows[k + 1] := b[1]; rows[k + 2] := b[2]; rows[k + 3] := b[3]; rows[k + 4] := b[4]; rows[k + 5] := b[5];
        end loop;
        -- It may have waited; behind a lock it has not.
        exit when not written or try = 2 and (sure and complete or pglimit.in_time(now_ns, complete));
        for i in 1 .. n loop
            continue when not asked[i];
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            values (_keys[i], coalesce(_limiters[i], _limiters[1]), now_ns, coalesce(_tokens_ns[i], _tokens_ns[1]), now_ns)
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
        end loop;
    end loop;
    for i in 1 .. case when ends_ns is not null then n else 0 end loop
        k := i * 5 - 5;
        if ends_ns[least(i, cardinality(ends_ns))] is not null and seen[k + 3] > 0
            and (seen[k + 4] > 0 or seen[k + 5] = 0 or seen[k + 3] > now_ns + pglimit.window_step_ns()) then
            -- A bucket's row, or one that was far ahead, is told as it means in the asker's window.
            b := array[news[k + 1], news[k + 2], news[k + 3], news[k + 4], news[k + 5]];
            rows[k + 1] := b[1]; rows[k + 2] := b[2]; rows[k + 3] := b[3]; rows[k + 4] := b[4]; rows[k + 5] := b[5];
        end if;
    end loop;
    select array_agg(array[x, news[x * 5 - 2], granted[x], rows[x * 5 - 4], rows[x * 5 - 3], rows[x * 5 - 2], rows[x * 5 - 1],
        rows[x * 5]] order by x)
    into buckets from generate_series(1, n) x where _keys[x] is not null;
end
$$;

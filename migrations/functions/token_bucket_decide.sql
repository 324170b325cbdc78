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
-- buckets, each all or nothing, and if one is not granted, none is. (Null: each request is by itself.) What a group takes
-- ahead it uses when the last of it comes back: if a calendar window of the group has ended by then, none is granted.
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
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
    n constant int := cardinality(_keys);
    now_ns bigint;
    ends_ns bigint[]; -- of the windows of the calendars
    -- Of each bucket:
    rows bigint[]; -- the row as it was seen, then as it is written: see token_bucket_rows
    pauses_ns bigint[]; -- for how long it is paused, or was, see token_bucket_paused; null: it is not
    fulls_ns bigint[]; -- when it is full again, with what is taken
    froms_ns bigint[]; -- see tokens_there
    rooms_ns bigint[]; -- the window, less what is leased
    granted bigint[]; -- tokens
    asked boolean[]; -- tokens are asked of it
    b bigint[];
    g int; -- group
    fallen boolean; -- a request of it cannot be granted
    due_ns bigint; -- when all is there that it takes ahead; null: it takes nothing ahead
    until_ns bigint; -- the first end of its calendar windows
    end_ns bigint;
    i int; -- bucket
    unit bigint;
    written boolean;
    complete boolean;
    said text;
begin
    _limiters := case cardinality(_limiters) when n then _limiters else array_fill(_limiters[1], array[n]) end;
    _tokens_ns := case cardinality(_tokens_ns) when n then _tokens_ns else array_fill(_tokens_ns[1], array[n]) end;
    _windows_ns := case cardinality(_windows_ns) when n then _windows_ns else array_fill(_windows_ns[1], array[n]) end;
    for try in case when sure then 1 else 2 end .. 2 loop
        rows := pglimit.token_bucket_rows(_keys, _limiters);
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_ends_ns(_calendars, now_ns);
        i := 1;
        foreach b slice 1 in array rows loop
            pauses_ns[i] := case when b[6] > b[3] then b[6] - greatest(b[3], now_ns) end;
            if pauses_ns[i] is not null then
                b := pglimit.token_bucket_paused(b, pauses_ns[i], now_ns, _tokens_ns[i], _windows_ns[i],
                    ends_ns[least(i, cardinality(ends_ns))]);
            else
                b := pglimit.token_bucket_read(b, now_ns, _tokens_ns[i], ends_ns[least(i, cardinality(ends_ns))]);
            end if;
            fulls_ns[i] := b[1];
            froms_ns[i] := case when b[4] = 0 and b[5] > 0 then b[5] else b[3] end;
            rooms_ns[i] := _windows_ns[i] - b[4];
            i := i + 1;
        end loop;
        grants := array_fill(0::bigint, array[cardinality(wants)]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        g := 1;
        fallen := false;
        due_ns := null;
        until_ns := null;
        for j in 1 .. cardinality(wants) loop
            i := coalesce(members[j], j);
            continue when _keys[i] is null;
            unit := coalesce(units[j], greatest(1, wants[j]));
            -- A unit that is larger than the room would be used before leased tokens have come back.
            if unit <= rooms_ns[i] / _tokens_ns[i] then
                grants[j] := greatest(0, least(wants[j], pglimit.tokens_there(
                    fulls_ns[i], froms_ns[i], _tokens_ns[i], rooms_ns[i] + coalesce(aheads_ns[j], 0)))) / unit * unit;
            end if;
            asked[i] := asked[i] or wants[j] > 0;
            granted[i] := granted[i] + grants[j];
            fulls_ns[i] := fulls_ns[i] + grants[j] * _tokens_ns[i];
            continue when lasts is null;
            fallen := fallen or grants[j] = 0;
            if aheads_ns is not null then
                end_ns := ends_ns[least(i, cardinality(ends_ns))];
                until_ns := least(until_ns, end_ns);
                if end_ns is null and fulls_ns[i] - rooms_ns[i] > froms_ns[i] then
                    due_ns := greatest(due_ns, fulls_ns[i] - rooms_ns[i]);
                end if;
            end if;
            continue when j < lasts[g];
            -- A process waits a little longer, see AtMost in skew.go.
            fallen := fallen or coalesce(due_ns >= until_ns - (until_ns - now_ns) / 1024, false);
            for f in coalesce(lasts[g - 1], 0) + 1 .. case when fallen then j else 0 end loop
                i := coalesce(members[f], f);
                granted[i] := granted[i] - grants[f];
                fulls_ns[i] := fulls_ns[i] - grants[f] * _tokens_ns[i];
                grants[f] := 0;
            end loop;
            g := g + 1;
            fallen := false;
            due_ns := null;
            until_ns := null;
        end loop;
        complete := true;
        written := false;
        for i in 1 .. n loop
            continue when not asked[i];
            b := array[rows[i][1], rows[i][2], rows[i][3], rows[i][4], rows[i][5]];
            continue when granted[i] = 0 and not (pglimit.writable() and (pglimit.token_bucket_ahead(b, now_ns)
                or coalesce(pauses_ns[i] > 0 and b[3] > now_ns + pglimit.step_ns(), false)));
            if granted[i] > 0 or b[4] = 0 and b[5] > 0 and pglimit.token_bucket_ahead(b, now_ns) then
                b := pglimit.token_bucket_read(b, now_ns, _tokens_ns[i], ends_ns[least(i, cardinality(ends_ns))]);
                b[1] := case when granted[i] > 0 then fulls_ns[i] else b[1] end; -- a paused window reads otherwise
            else -- the clock has stepped back: a row keeps its price, or window
                b := pglimit.token_bucket_read(b, now_ns, b[2], case when b[4] = 0 and b[5] > 0 then b[5] end);
            end if;
            written := true;
            exit when try = 1;
            if rows[i][3] = 0 then
                insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_keys[i], _limiters[i], b[1], b[2], b[3], nullif(b[5], 0))
                on conflict do nothing;
            else
                update pglimit.token_bucket t
                set full_ns = b[1], token_ns = b[2], at_ns = b[3],
                    leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0), padding = null,
                    paused_ns = case when pauses_ns[i] > 0 then b[3] + pauses_ns[i] end
                where t.key = _keys[i] and t.limiter = _limiters[i] -- and it is as it was seen
                    and array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0),
                        coalesce(t.paused_ns, 0)]
                        = array[rows[i][1], rows[i][2], rows[i][3], rows[i][4], rows[i][5], rows[i][6]];
            end if;
            complete := complete and found;
            rows[i][1] := b[1]; rows[i][2] := b[2]; rows[i][3] := b[3]; rows[i][4] := b[4]; rows[i][5] := b[5];
        end loop;
        -- It may have waited; behind a lock it has not.
        exit when not written or try = 2 and (sure and complete or pglimit.in_time(now_ns, complete));
        for i in 1 .. n loop
            continue when not asked[i];
            said := pglimit.token_bucket_lock(_keys[i], _limiters[i], _tokens_ns[i]);
        end loop;
    end loop;
    buckets := array(
        select x || pglimit.token_bucket_told(case when pauses_ns[x] is not null and granted[x] = 0
                then pglimit.token_bucket_paused(r."row", pauses_ns[x], now_ns, _tokens_ns[x], _windows_ns[x], e.ends_ns)
                else r."row" end, granted[x], now_ns, _tokens_ns[x], e.ends_ns)
        from generate_series(1, n) x
        cross join lateral (select array[rows[x][1], rows[x][2], rows[x][3], rows[x][4], rows[x][5]] as "row") r
        cross join lateral (select ends_ns[least(x, cardinality(ends_ns))] as ends_ns) e
        where _keys[x] is not null);
end
$$;

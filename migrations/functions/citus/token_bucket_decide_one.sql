-- Decides a request for one bucket that is not the usual case of token_bucket_take, or takes ahead: what token_bucket_decide does for many,
-- in statements that name the key, so that Citus can run them where the key is.
--
-- It looks (a plain read, and the clock behind it) and decides in numbers. If nothing is granted, that is all. Otherwise it
-- locks the row (a missing one is inserted, full), looks and decides once more, and writes. A row that is ahead of the clock
-- is corrected, once, by a denial too.
--
-- ahead_ns: it is also granted what comes back within that time. The others, and the seven numbers that it returns: as for
-- token_bucket_take.
create or replace function pglimit.token_bucket_decide_one(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, ahead_ns bigint, patience text, _calendar text,
    relaxed boolean default false
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint;
    ends_ns bigint; -- of the window of the calendar
    seen bigint[]; -- the row: as for token_bucket_read; zeros where there is none
    news bigint[]; -- what it means now, and with what is taken
    granted bigint;
    room_ns bigint;
    moves boolean; -- see token_bucket_decide
    b record; -- the row that is written: Citus 13 crashes where a column of a domain is set to an element of an array
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if (_key is not null and _limiter is not null and ahead_ns between 0 and pglimit.max_window_ns()
        and unit between 1 and _window_ns / _token_ns and _window_ns <= pglimit.max_window_ns() and (want = 0 or unit <= want)) is not true then
        raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %, ahead_ns %', want, unit, _token_ns, _window_ns, ahead_ns using errcode = 'invalid_parameter_value';
    end if;
    if want > 0 and pg_catalog.current_setting('transaction_read_only') = 'off' then
        update pglimit.token_bucket set at_ns = at_ns where false; -- before the read: see token_bucket_take
    end if;
    for try in 1 .. 2 loop
        select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into seen
        from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
        seen := coalesce(seen, array[0, _token_ns, 0, 0, 0]);
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_end_ns(_calendar, now_ns);
        news := pglimit.token_bucket_read(seen, now_ns, _token_ns, ends_ns);
        room_ns := _window_ns - news[4];
        -- A unit that is larger than the room would be used before leased tokens have come back.
        granted := case when unit <= room_ns / _token_ns then
            least(want, greatest(0, case when news[4] = 0 and news[5] > 0 then news[5] else news[3] end + room_ns - news[1] + ahead_ns) / _token_ns) / unit * unit
        else 0 end;
        -- In a calendar window nothing is refilled, too much or too little; but its end moves after a long step.
        moves := seen[3] > 0 and (seen[4] > 0 or seen[5] = 0 or seen[3] > now_ns + pglimit.window_step_ns());
        exit when granted = 0 and not (want > 0 and moves and seen[3] > now_ns + pglimit.step_ns());
        if try = 1 then
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            values (_key, _limiter, now_ns, _token_ns, now_ns)
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
            continue;
        end if;
        news[1] := news[1] + granted * _token_ns;
        -- Without a grant, the clock has stepped back: a bucket's row keeps its price.
        seen := case when granted > 0 or seen[4] = 0 and seen[5] > 0 then news else pglimit.token_bucket_read(seen, now_ns, seen[2]) end;
        b := row(seen[1], seen[2], seen[3], nullif(seen[4], 0), nullif(seen[5], 0));
        update pglimit.token_bucket t
        set full_ns = b.f1, token_ns = b.f2, at_ns = b.f3, leased_ns = b.f4, until_ns = b.f5, padding = null
        where t.key = _key and t.limiter = _limiter;
    end loop;
    -- The row of a bucket, or of a window that was far ahead, is told to who has a calendar window as it means there.
    return array[news[3], granted] || case when moves and ends_ns is not null then news else seen end;
end
$$;

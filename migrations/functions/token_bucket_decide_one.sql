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
    new_full_ns bigint; -- the row that is written: Citus 13 crashes where a column of a domain is set to an element of an array
    price_ns bigint;
    new_at_ns bigint;
    new_leased_ns bigint;
    new_until_ns bigint;
begin
    if patience is not null then
        patience := pg_catalog.set_config('lock_timeout', patience, true);
    end if;
    if relaxed then
        patience := pg_catalog.set_config('synchronous_commit', 'off', true);
    end if;
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
        ends_ns := case when _calendar is not null then pglimit.window_end_ns(_calendar, now_ns) end;
        news := pglimit.token_bucket_read(seen, now_ns, _token_ns, ends_ns);
        room_ns := greatest(0, _window_ns - news[4]);
        -- A unit that is larger than the room would be used before leased tokens have come back.
        granted := case when unit <= room_ns / _token_ns then
            least(want, greatest(0, case when news[4] = 0 and news[5] > 0 then news[5] else news[3] end + room_ns - news[1] + ahead_ns) / _token_ns) / unit * unit
        else 0 end;
        -- In a calendar window nothing is refilled, too much or too little; but its end moves after a long step.
        exit when granted = 0 and not (want > 0 and seen[3] > now_ns + pglimit.step_ns()
            and (seen[4] > 0 or seen[5] = 0 or seen[3] > now_ns + pglimit.window_step_ns()));
        if try = 1 then
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            values (_key, _limiter, now_ns, _token_ns, now_ns)
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
            continue;
        end if;
        if granted = 0 and (seen[4] > 0 or seen[5] = 0) then -- the clock has stepped back: the row keeps its price
            news := pglimit.token_bucket_read(seen, now_ns, seen[2]);
        end if;
        news[1] := news[1] + granted * _token_ns;
        new_full_ns := news[1];
        price_ns := news[2];
        new_at_ns := news[3];
        new_leased_ns := nullif(news[4], 0);
        new_until_ns := nullif(news[5], 0);
        update pglimit.token_bucket t
        set full_ns = new_full_ns, token_ns = price_ns, at_ns = new_at_ns, leased_ns = new_leased_ns,
            until_ns = new_until_ns, padding = null
        where t.key = _key and t.limiter = _limiter;
        seen := news;
    end loop;
    -- The row of a bucket, or of a window that was far ahead, is told to who has a calendar window as it means there.
    return array[news[3], granted] || case
        when seen[3] > 0 and (seen[4] > 0 or seen[5] = 0 or seen[3] > now_ns + pglimit.window_step_ns()) and ends_ns is not null
            then pglimit.token_bucket_read(seen, now_ns, _token_ns, ends_ns)
        else seen
    end;
end
$$;

-- Gives back tokens that were granted and not used: what they are due is explained in
-- strategies/internal/rows/sql/give_back.sql, which does the same for tables without leases.
--
-- _key, _limiter, _token_ns, _window_ns: as for token_bucket_take. tokens: how many. granted_ns: when
-- they were granted. delay_ns: how much later they were due. _calendar: as for token_bucket_take; if the row is of
-- another window than the one in which they were granted, they are gone. relaxed: as there.
--
-- Waits for any call that holds the row, locks it, and, without a calendar, only then reads the clock.
create or replace function pglimit.token_bucket_give_back(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, tokens bigint, granted_ns bigint, delay_ns bigint,
    _calendar text default null, relaxed boolean default false
) returns void
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    held bigint[]; -- full_ns, at_ns, leased_ns
    now_ns bigint;
    used_ns bigint; -- refilled or reserved since they were due
    back_ns bigint;
    ends_ns bigint; -- of the calendar window in which they were granted
    said text;
begin
    if (_key is not null and _limiter is not null and _token_ns > 0 and _window_ns between _token_ns and pglimit.max_window_ns()
        and tokens between 0 and 9223372036854775807 / _token_ns and granted_ns >= 0 and delay_ns between 0 and 9223372036854775807 - granted_ns) is not true then
        raise exception 'token_bucket_give_back: % tokens, token_ns %, window_ns %, granted_ns %, delay_ns %', tokens, _token_ns, _window_ns, granted_ns, delay_ns
            using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    if _calendar is not null then
        now_ns := pglimit.clock_ns();
        ends_ns := pglimit.window_end_ns(_calendar, granted_ns);
        update pglimit.token_bucket t set full_ns = greatest(t.until_ns, t.full_ns - tokens)
        where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.leased_ns is null and t.until_ns = ends_ns
            and greatest(t.at_ns, now_ns) >= granted_ns;
        return;
    end if;
    lock table pglimit.token_bucket in row exclusive mode; -- before the read: see token_bucket_take
    select array[t.full_ns, t.at_ns, coalesce(t.leased_ns, 0)] into held
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and (t.until_ns is null or t.leased_ns > 0) for no key update;
    now_ns := pglimit.clock_ns();
    used_ns := greatest(0, greatest(held[2], now_ns, held[1] - _window_ns + least(_window_ns, held[3])) - granted_ns - delay_ns);
    back_ns := case when used_ns > 0 then least(tokens * _token_ns, _window_ns) else tokens * _token_ns end - used_ns;
    if held[1] > now_ns and greatest(held[2], now_ns) >= granted_ns and back_ns > 0 then
        update pglimit.token_bucket t set full_ns = greatest(now_ns, held[1] - back_ns) where t.key = _key and t.limiter = _limiter;
    end if;
end
$$;

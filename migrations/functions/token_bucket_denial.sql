-- Looks at a bucket. Returns the seven numbers of a denial of token_bucket_take if it lacks unit tokens. Else null;
-- also if its row was written before the clock stepped back, which a take corrects. Locks nothing. The parameters: as
-- for token_bucket_take.
create or replace function pglimit.token_bucket_denial(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, unit bigint, _calendar text
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    b bigint[];
    now_ns bigint;
    ends_ns bigint; -- of the window of the calendar
    news bigint[]; -- what the row means now
begin
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into b
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    ends_ns := pglimit.window_end_ns(_calendar, now_ns);
    if b is null
        or b[3] > now_ns + (case when b[4] = 0 and b[5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end)
            and pglimit.writable() then
        return null;
    end if;
    news := pglimit.token_bucket_read(b, now_ns, _token_ns, ends_ns);
    if unit <= pglimit.tokens_there(
        news[1], case when ends_ns is null then news[3] else news[5] end, _token_ns, greatest(0, _window_ns - news[4])) then
        return null;
    end if;
    return array[news[3], 0] || case when ends_ns is not null and (b[4] > 0 or b[5] = 0) then news else b end;
end
$$;

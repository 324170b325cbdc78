-- Looks at a bucket. Returns the seven numbers of token_bucket_take. The second is 0 if unit tokens are not there,
-- which is a denial; else null, also if the row was written before the clock stepped back, which a take corrects.
-- Locks nothing. The parameters: as for token_bucket_take.
create or replace function pglimit.token_bucket_seen(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, unit bigint, _calendar text
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    b bigint[];
    left_ns bigint; -- of a pause; first, when it ends
    ahead boolean;
    now_ns bigint;
    ends_ns bigint; -- of the window of the calendar
    news bigint[]; -- what the row means now
    denied boolean;
begin
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)], t.paused_ns
    into b, left_ns
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns(); -- behind the look, see token_bucket_take
    ends_ns := pglimit.window_end_ns(_calendar, now_ns); -- without a row too: a time zone that is none is an error
    b := coalesce(b, '{0,0,0,0,0}');
    ahead := pglimit.token_bucket_ahead(b, now_ns);
    if left_ns > b[3] then
        left_ns := left_ns - greatest(b[3], now_ns);
        ahead := b[3] > now_ns + pglimit.step_ns();
        b := pglimit.token_bucket_paused(b, left_ns, now_ns, _token_ns, _window_ns, ends_ns);
    end if;
    news := pglimit.token_bucket_read(b, now_ns, _token_ns, ends_ns);
    denied := not (ahead and pglimit.writable()) and unit > pglimit.tokens_there(
        news[1], case when ends_ns is null then news[3] else news[5] end, _token_ns, greatest(0, _window_ns - news[4]));
    b := pglimit.token_bucket_told(b, case when denied then 0 end, now_ns, _token_ns, ends_ns);
    return case when denied then b else now_ns || b[2:] end; -- only a decision is dated after the grants that it counts
end
$$;

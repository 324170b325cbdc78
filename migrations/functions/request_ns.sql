-- Checks the limit and n of a request. Returns the price of a token and the window in nanoseconds, or
-- fails with SQLSTATE 22023. The limit is limit_text, or tokens, period and burst (null: as many as
-- tokens).
create or replace function pglimit.request_ns(
    limit_text text, n bigint, tokens bigint, period interval, burst bigint, out token_ns bigint, out window_ns bigint
)
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    said record;
    period_ns bigint;
    why text := case
        when limit_text is not null and num_nonnulls(tokens, period, burst) > 0 then 'the limit is given twice: give it as limit_text, or as tokens, period and burst'
        when limit_text is null and num_nonnulls(tokens, period, burst) = 0 then 'limit_text is null: give the limit as a text, or as tokens, period and burst'
        when limit_text is null and tokens is null then 'tokens is null: it must be at least 1'
        when limit_text is null and period is null then 'period is null: it must be longer than zero'
        when not isfinite(period) or extract(epoch from period) not between -9223372036 and 9223372036
            then format('period is %s: it must be at most 200 years', period)
        when extract(year from period) <> 0 or extract(month from period) <> 0
            then format('period is %s: write it in days, hours or less, because months differ in length', period)
    end;
begin
    if why is null then
        if limit_text is null then
            period_ns := extract(epoch from period) * 1000000000;
            burst := coalesce(burst, tokens);
        else
            said := pglimit.limit_of(limit_text);
            tokens := said.tokens;
            period_ns := said.period_ns;
            burst := said.burst;
        end if;
        token_ns := pglimit.limit_token_ns(tokens, period_ns, burst);
        window_ns := token_ns * burst;
        why := case
            when n is null then 'n is null: it must be at least 1'
            when n < 1 then format('n is %s: it must be at least 1', n)
            when n > burst then format('n is %s: more than the burst of %s could never be granted', n, burst)
        end;
    end if;
    if why is not null then
        raise exception 'pglimit: %', why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. The limit is a text such as ''100/1m burst 20'', or numbers: tokens => 100, period => ''1 minute'', burst => 20.';
    end if;
end
$$;

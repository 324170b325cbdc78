-- Returns the price of a token in nanoseconds: the time in which one token is refilled, rounded up.
-- Fails with SQLSTATE 22023 if the limit cannot be kept. The rules are those of rate.Limit.Validate
-- in Go. The price times the burst is the window, which fits a bigint.
create or replace function pglimit.limit_token_ns(tokens bigint, period_ns bigint, burst bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    longest_ns constant bigint := 200 * 365 * 86400000000000;
    token_ns constant bigint := case when tokens > 0 and period_ns > 0 then (period_ns - 1) / tokens + 1 end;
    why constant text := case
        when tokens < 1 then format('tokens is %s: it must be at least 1', tokens)
        when period_ns < 1 then format('period is %sns: it must be longer than zero', period_ns)
        when tokens > period_ns then format('tokens is %s in %sns: the rate must be at most 1000000000 tokens per second', tokens, period_ns)
        when burst < 1 then format('burst is %s: it must be at least 1 (tokens, %s, is usual)', burst, tokens)
        -- A price of a microsecond or more is rounded by at most a thousandth.
        when token_ns < 1000 and tokens::numeric * token_ns - period_ns > period_ns / 1000
            then format('period is %sns for %s tokens, which is no whole number of nanoseconds per token: use %sns or %sns',
                period_ns, tokens, tokens * (token_ns - 1)::numeric, tokens * token_ns::numeric)
        when token_ns > longest_ns then format('period is %sns for %s tokens: a token must come back within 200 years', period_ns, tokens)
        when burst > longest_ns / token_ns
            then format('burst is %s, which take longer than 200 years to come back at this rate: it must be at most %s', burst, longest_ns / token_ns)
    end;
begin
    if why is not null then
        raise exception 'pglimit: %', why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. A limit is the tokens, the period and the burst: ''100/1m burst 20''.';
    end if;
    return token_ns;
end
$$;

-- Checks a request: the names of its bucket, its limit, and n. The limit is limit_text, or tokens, period and burst
-- (null: as many as tokens). Returns the price of a token in nanoseconds (the time in which one token is refilled,
-- rounded up), and the window, which is the price of a burst and fits a bigint. Fails with SQLSTATE 22023.
--
-- The text is read as rate.ParseLimit does in Go: "100/1m burst 20", "10/s", "5/1d". The rules are those of
-- rate.Request.Validate and rate.Limit.Validate.
create or replace function pglimit.request_ns(
    limiter text, key text, limit_text text, n bigint, tokens bigint, period interval, burst bigint, out token_ns bigint, out window_ns bigint
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    longest_ns constant bigint := 200 * 365 * 86400000000000;
    words constant text collate "C" := lower(pglimit.trimmed(limit_text) collate "C");
    rate constant text collate "C" := split_part(words, 'burst', 1);
    tokens_word constant text := pglimit.trimmed(split_part(rate, '/', 1));
    period_word constant text := pglimit.trimmed(substr(rate, strpos(rate, '/') + 1));
    burst_word constant text := pglimit.trimmed(substr(words, nullif(strpos(words, 'burst'), 0) + 5)); -- null: there is none
    period_ns bigint;
    why text := coalesce(pglimit.bad_name('limiter', limiter, 128), pglimit.bad_name('key', key, 1024), case
        when limit_text is not null and num_nonnulls(tokens, period, burst) > 0 then 'the limit is given twice: give it as limit_text, or as tokens, period and burst'
        when limit_text is not null then null
        when num_nonnulls(tokens, period, burst) = 0 then 'limit_text is null: give the limit as a text, or as tokens, period and burst'
        when tokens is null then 'tokens is null: it must be at least 1'
        when period is null then 'period is null: it must be longer than zero'
        when not isfinite(period) or extract(epoch from period) not between -9223372036 and 9223372036
            then format('period is %s: it must be at most 200 years', period)
        when extract(year from period) <> 0 or extract(month from period) <> 0
            then format('period is %s: write it in days, hours or less, because months differ in length', period)
    end);
begin
    if limit_text is not null and why is null then
        tokens := pglimit.whole_number(replace(tokens_word, '_', ''));
        period_ns := pglimit.period_ns_of(period_word);
        burst := case when burst_word is null then tokens else pglimit.whole_number(replace(burst_word, '_', '')) end;
        why := 'limit ' || to_json(limit_text) || ': ' || case
            when strpos(rate, '/') = 0 then 'there is no "/" between tokens and period'
            when tokens is null then format('tokens %s is not a whole number', to_json(tokens_word))
            when period_ns is null then format('period %s is not a duration such as 500ms, 1m30s or 1d, or a unit such as s, m, h or d', to_json(period_word))
            when burst is null then format('burst %s is not a whole number', to_json(burst_word))
            when burst_word is not null and burst = 0 then 'the burst must be at least 1'
        end;
    elsif why is null then
        period_ns := extract(epoch from period) * 1000000000;
        burst := coalesce(burst, tokens);
    end if;
    token_ns := (greatest(period_ns, 1) - 1) / nullif(greatest(tokens, 0), 0) + 1;
    why := coalesce(why, case
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
        when n is null then 'n is null: it must be at least 1'
        when n < 1 then format('n is %s: it must be at least 1', n)
        when n > burst then format('n is %s: more than the burst of %s could never be granted', n, burst)
    end);
    if why is not null then
        raise exception 'pglimit: %', why using errcode = 'invalid_parameter_value',
            hint = 'Nothing was taken. The limit is a text such as ''100/1m burst 20'', or numbers: tokens => 100, period => ''1 minute'', burst => 20.';
    end if;
    window_ns := token_ns * burst;
end
$$;

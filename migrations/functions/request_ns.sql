-- Checks a request: the names of its bucket, its limit, and n. The limit is limit_text, or tokens, period and burst
-- (null: as many as tokens). Returns the price of a token in nanoseconds (the time in which one token is refilled,
-- rounded up), and the window, which is the price of a burst and fits a bigint; and the calendar of a limit per calendar
-- window, for window_end_ns, with which a token costs 1. Fails with SQLSTATE 22023.
--
-- The text is read as rate.ParseLimit does in Go: N/[n]unit [burst N] ("100/1m burst 20", "10/s", "1000/day"), or a
-- window of the calendar ("1000/day fixed", "10000/month from 15 Europe/Berlin"). The rules are those of
-- rate.Request.Validate and rate.Limit.Validate.
create or replace function pglimit.request_ns(
    limiter text, key text, limit_text text, n bigint, tokens bigint, period interval, burst bigint, out token_ns bigint, out window_ns bigint, out calendar text
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    longest_ns constant bigint := 200 * 365 * 86400000000000;
    words constant text[] := array_remove(string_to_array(limit_text, ' '), '');
    tokens_word constant text := split_part(words[1], '/', 1);
    period_word constant text := substr(words[1], length(tokens_word) + 2);
    unit constant text := ltrim(period_word, '0123456789');
    first constant text := case words[2] when 'from' then words[3] end; -- day of a window
    zone constant text := nullif(words[case words[2] when 'from' then 4 else 2 end], 'burst');
    burst_word constant text := words[array_position(words, 'burst') + 1]; -- null: there is none
    period_ns bigint;
    why text := case
        when (octet_length(limiter) between 1 and 128) is not true
            then 'limiter ' || coalesce('has ' || octet_length(limiter)::text || ' bytes', 'is null') || ': it needs a name of 1 to 128 bytes (a constant if there is only one)'
        when (octet_length(key) between 1 and 1024) is not true
            then 'key ' || coalesce('has ' || octet_length(key)::text || ' bytes', 'is null') || ': it needs a name of 1 to 1024 bytes (hash what is longer)'
        when limit_text is not null and num_nonnulls(tokens, period, burst) > 0 then 'the limit is given twice: give it as limit_text, or as tokens, period and burst'
        when limit_text is not null then null
        when num_nonnulls(tokens, period, burst) = 0 then 'limit_text is null: give the limit as a text, or as tokens, period and burst'
        when tokens is null then 'tokens is null: it must be at least 1'
        when period is null then 'period is null: it must be longer than zero'
        when not isfinite(period) or extract(epoch from period) not between -9223372036 and 9223372036
            then format('period is %s: it must be at most 200 years', period)
        when extract(year from period) <> 0 or extract(month from period) <> 0
            then format('period is %s: write it in days, hours or less, because months differ in length', period)
    end;
begin
    if limit_text is not null and why is null then
        tokens := pglimit.whole_number(tokens_word);
        burst := pglimit.whole_number(coalesce(burst_word, tokens_word));
        if unit in ('month', 'year') or num_nonnulls(first, zone) > 0 then
            calendar := concat_ws(' from ', unit, first) || ' ' || coalesce(nullif(zone, 'fixed'), 'UTC');
            period_ns := 1;
        else
            period_ns := pglimit.period_ns_of(period_word);
        end if;
        why := 'limit ' || to_json(limit_text) || ': ' || case
            when limit_text !~ ('^ *[^ /]*/[^ ]*( +from +([a-z]+day|[0-9]+))?'
                '( +(fixed|UTC|Etc/[A-Za-z0-9+-]+|[A-Za-z_-]+(/[A-Za-z_-]+)+))?( +burst +[^ ]+)? *$')
                then 'it must be tokens/period, then perhaps "from 15", "fixed" or a time zone such as Europe/Berlin, '
                    'then perhaps "burst 20"'
            when tokens is null then format('tokens %s is not a whole number', to_json(tokens_word))
            when calendar is not null and period_word !~ '^1?(second|minute|hour|day|week|month|year)$'
                then format('period %s is no window of the calendar: write second, minute, hour, day, week, month or '
                    'year', to_json(period_word))
            when period_ns is null
                then format('period %s is not a whole number of ms, s, m, h, day or week such as 90s, nor month or '
                    'year', to_json(period_word))
            when burst is null then format('burst %s is not a whole number', to_json(burst_word))
            when unit || first !~ '^(week(mon|tues|wednes|thurs|fri|satur|sun)day|month([1-9]|[12][0-9]|3[01]))$'
                then format('a %s from %s: a week is from monday to sunday, a month from 1 to 31', unit, first)
        end;
    elsif why is null then
        period_ns := extract(epoch from period) * 1000000000;
        burst := coalesce(burst, tokens);
    end if;
    token_ns := case when calendar is null then (greatest(period_ns, 1) - 1) / nullif(greatest(tokens, 0), 0) + 1 else 1 end;
    why := coalesce(why, case
        when tokens < 1 then format('tokens is %s: it must be at least 1', tokens)
        when period_ns < 1 then format('period is %sns: it must be longer than zero', period_ns)
        when calendar is not null and burst > tokens then format('burst is %s: of a window it must be at most the tokens, %s', burst, tokens)
        when calendar is null and tokens > period_ns then format('tokens is %s in %sns: the rate must be at most 1000000000 tokens per second', tokens, period_ns)
        when burst < 1 then format('burst is %s: it must be at least 1 (tokens, %s, is usual)', burst, tokens)
        -- A price of a microsecond or more is rounded by at most a thousandth.
        when calendar is null and token_ns < 1000 and tokens::numeric * token_ns - period_ns > period_ns / 1000
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
            hint = 'Nothing was taken. Limiter and key name what is limited, and for whom. The limit is a text such as ''100/1m burst 20'', or numbers: tokens => 100, period => ''1 minute'', burst => 20.';
    end if;
    window_ns := token_ns * burst;
end
$$;

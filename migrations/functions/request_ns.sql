-- Checks a request: the names of its bucket, its limit, and n. The limit is limit_text, or tokens, period and burst
-- (null: as many as tokens). Returns the price of a token in nanoseconds (the time in which one token is refilled,
-- rounded up), and the window, which is the price of a burst and fits a bigint; and the calendar of a limit per calendar
-- window, for window_end_ns, with which a token costs 1. Fails with SQLSTATE 22023.
--
-- The text is read as rate.ParseLimit does in Go: "100/1m burst 20", "10/s", "5/1d", "1000/day fixed",
-- "10000/month from 15 Europe/Berlin". The rules are those of
-- rate.Request.Validate and rate.Limit.Validate.
create or replace function pglimit.request_ns(
    limiter text, key text, limit_text text, n bigint, tokens bigint, period interval, burst bigint, out token_ns bigint, out window_ns bigint, out calendar text
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    longest_ns constant bigint := 200 * 365 * 86400000000000;
    given constant text := pglimit.trimmed(limit_text);
    words constant text collate "C" := lower(given collate "C");
    rate constant text collate "C" := split_part(words, 'burst', 1);
    tokens_word constant text := pglimit.trimmed(split_part(rate, '/', 1));
    period_word constant text collate "C" := pglimit.trimmed(substr(rate, strpos(rate, '/') + 1));
    duration_word constant text := pglimit.trimmed(substr(left(given, length(rate)), strpos(rate, '/') + 1)); -- as it was written: 1M might be a month
    burst_word constant text := pglimit.trimmed(substr(words, nullif(strpos(words, 'burst'), 0) + 5)); -- null: there is none
    window_words constant text[] := regexp_match(period_word,
        '^(second|minute|hour|day|week|month|year)(?:[[:space:]]+from[[:space:]]+([a-z]+day|[0-9]{1,2}))?(?:[[:space:]]+(fixed|utc|etc/[a-z0-9+-]+|[a-z_-]+(?:/[a-z_-]+)+))?$');
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
        tokens := pglimit.whole_number(replace(tokens_word, '_', ''));
        if window_words is not null then
            calendar := window_words[1] || coalesce(' from ' || window_words[2], '') || ' ' ||
                coalesce(substr(given, strpos(words, nullif(window_words[3], 'fixed')), length(window_words[3])), 'utc'); -- as it was written, for errors
            period_ns := 1;
        else
            period_ns := pglimit.period_ns_of(duration_word);
        end if;
        burst := case when burst_word is null then tokens else pglimit.whole_number(replace(burst_word, '_', '')) end;
        why := 'limit ' || to_json(limit_text) || ': ' || case
            when strpos(rate, '/') = 0 then 'there is no "/" between tokens and period'
            when tokens is null then format('tokens %s is not a whole number', to_json(tokens_word))
            when period_ns is null then format('period %s is not a duration such as 500ms, 1m30s or 1d, or a unit such as s, m, h or d', to_json(duration_word))
            when window_words[1] not in ('month', 'year') and num_nonnulls(window_words[2], window_words[3]) = 0
                then format('period %s is a calendar window: write "%s fixed", or name its time zone; for tokens that come back one by one, "1%s"',
                    to_json(period_word), window_words[1], left(window_words[1], 1))
            when window_words[2] is not null and case window_words[1]
                when 'week' then array_position('{monday,tuesday,wednesday,thursday,friday,saturday,sunday}', window_words[2]) is null
                when 'month' then window_words[2] !~ '^0?([1-9]|[12][0-9]|3[01])$' else true end
                then format('a %s from %s: a week is from monday to sunday, a month from 1 to 31', window_words[1], window_words[2])
            when burst is null then format('burst %s is not a whole number', to_json(burst_word))
            when burst_word is not null and burst = 0 then 'the burst must be at least 1'
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

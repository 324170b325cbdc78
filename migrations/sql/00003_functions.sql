-- The functions and views, each as it stands in its file of the folder functions, in
-- an order in which each finds those that it uses. Generated: do not edit, change the
-- file in the folder and run "go generate ./migrations".

-- +goose Up

-- functions/whole_number.sql
-- Returns the number that digits spell, with or without a sign. Null if they spell no whole number,
-- or one that does not fit a bigint.
create or replace function pglimit.whole_number(digits text) returns bigint
language sql immutable parallel safe
return case
    when digits collate "C" !~ '^[+-]?[0-9]+$' then null
    when digits::numeric between -9223372036854775808 and 9223372036854775807 then digits::bigint
end;

-- functions/period_ns_of.sql
-- +goose StatementBegin
-- Returns the nanoseconds of the period of a limit: a Go duration ("1m30s", "1.5h"), or a whole number
-- of days or weeks ("2w"). A number 1 before the unit may be left out. Null if the text is no period, or one that does
-- not fit a bigint. A period may be zero or negative: pglimit.request_ns refuses that.
create or replace function pglimit.period_ns_of(period text) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    word constant text collate "C" := case when left(period, 1) collate "C" between 'a' and 'z' then '1' else '' end || period;
    ns numeric := 0;
    part text[];
    fraction text;
    unit_ns numeric;
begin
    if right(word, 1) in ('d', 'w') then
        ns := pglimit.whole_number(left(word, -1)) * case right(word, 1) when 'd' then 86400000000000 else 604800000000000 end::numeric;
    elsif word ~ '^[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)[^0-9.+-]+)+$' then
        for part in select regexp_matches(ltrim(word, '+-'), '([0-9]*)[.]?([0-9]*)([^0-9.]+)', 'g') loop
            unit_ns := case part[3] when 'h' then 3600000000000 when 'm' then 60000000000 when 's' then 1000000000 when 'ms' then 1000000 when 'us' then 1000 when 'ns' then 1
                -- With a micro sign or a small Greek mu before the s. Any other unit is none, and makes the sum null.
                else case when encode(convert_to(part[3], 'UTF8'), 'hex') in ('c2b573', 'cebc73') then 1000 end
            end;
            ns := ns + coalesce(nullif(part[1], '')::numeric, 0) * unit_ns;
            -- Go reckons a fraction in floating point, with as many digits as fit an integer.
            fraction := left('0' || part[2], 300);
            while fraction::numeric > 9223372036854775808 loop
                fraction := left(fraction, -1);
            end loop;
            ns := ns + trunc(fraction::double precision * (unit_ns::double precision / ('1e' || length(fraction) - 1)::double precision))::numeric;
        end loop;
        ns := case when left(word, 1) = '-' then -ns else ns end;
    elsif word !~ '^[+-]?0$' then
        return null;
    end if;
    return case when ns between -9223372036854775808 and 9223372036854775807 then ns end;
end
$$;
-- +goose StatementEnd

-- functions/trimmed.sql
-- Returns the text without white space around it. White space is what Unicode calls so, as for Go's
-- strings.TrimSpace. "!" stands for a backslash: what one in a string means depends on
-- standard_conforming_strings, so no string here has any.
create or replace function pglimit.trimmed(text) returns text
language sql immutable parallel safe
return regexp_replace($1 collate "C", replace(
    '^[!u0009-!u000d !u0085!u00a0!u1680!u2000-!u200a!u2028!u2029!u202f!u205f!u3000]+|[!u0009-!u000d !u0085!u00a0!u1680!u2000-!u200a!u2028!u2029!u202f!u205f!u3000]+$', '!', chr(92)), '', 'g');

-- functions/request_ns.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- functions/step_ns.sql
-- A row that is dated more than 10 ms ahead of the clock was written before the clock stepped back. (Less is no
-- step: a statement may read the clock before another one does, and reach the row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe return 10000000::bigint;

-- functions/time_of.sql
-- The time that is ns nanoseconds after the beginning of 1970, rounded down to a microsecond:
-- timestamptz is no finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

-- functions/read_full_ns.sql
-- Returns when a bucket is full again, as of now_ns and at the price token_ns of a token. That is
-- full_ns of its row, converted if the row was written at another price (its_token_ns). Without
-- a row (nulls) the bucket is full: 0.
--
-- Used tokens stay used, as tokens, rounded up. Since at_ns they have been refilled at the faster of both
-- rates, so the bucket owes the less of two: what it owes at the old price, and what it owed at at_ns, less
-- what was refilled since then at the new one. (Both in tokens times both prices, divided at the end: numeric,
-- because that does not fit a bigint. The largest bigint denies every request.)
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.read_full_ns(full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else least(9223372036854775807, greatest(now_ns, at_ns) + div(
        greatest(0, least(
            (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
            (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
        )) + its_token_ns - 1, its_token_ns))::bigint
end;

-- functions/window_step_ns.sql
-- The end of a calendar window stays where it is, if the clock steps back by no more than this: a day.
create or replace function pglimit.window_step_ns() returns bigint
language sql immutable parallel safe return 86400000000000;

-- functions/token_bucket_read.sql
-- +goose StatementBegin
-- Returns what a row of token_bucket means as of now_ns, or of its last write if that is later, to a caller who pays
-- token_ns for a token, or counts in a calendar window that ends at ends_ns (null: does not). This is the one function
-- that reads the notes of the last write:
--
--   - The row is ahead of the clock: the clock has stepped back since the write. The bucket owes now what it
--     owed then, so all times of the row move by the step.
--   - It is of a calendar window: full_ns - until_ns tokens were taken, and all come back at until_ns, its end. If the
--     caller's window ends at another time, they stay used until the later end. A bucket owes them since the last write.
--     The end does not move with the clock. But after a step back by more than window_step_ns it is the caller's, and for who has
--     no window the tokens are owed from now on: else a clock that was a year ahead would lock out for a year.
--   - Its lease has expired: its tokens count as spent when it expired.
--   - It has another price of a token: used tokens stay used, see read_full_ns.sql. In a window all that the bucket owes
--     or has leased counts.
--
-- b and the result are five numbers: full_ns, token_ns, at_ns, leased_ns (0: no lease) and until_ns (0: neither a lease
-- nor a window). full_ns of the result is not before its at_ns, or the end of its window, and that is not before
-- now_ns. What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(b bigint[], now_ns bigint, token_ns bigint, ends_ns bigint default null) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    full_ns bigint := b[1];
    at_ns bigint := b[3];
    leased_ns bigint := b[4];
    until_ns bigint := b[5];
    used numeric; -- tokens
begin
    if leased_ns = 0 and until_ns > 0 then
        used := full_ns - until_ns;
        until_ns := case when at_ns - pglimit.window_step_ns() > now_ns then coalesce(ends_ns, until_ns) else until_ns end;
        at_ns := case when at_ns - pglimit.step_ns() > now_ns then now_ns else at_ns end;
        now_ns := greatest(now_ns, at_ns);
        used := case when until_ns > now_ns then used else 0 end;
        if ends_ns is null then
            return array[greatest(now_ns, least(9223372036854775807, at_ns + used * token_ns)), token_ns, now_ns, 0, 0];
        end if;
        ends_ns := case when until_ns > now_ns then greatest(until_ns, ends_ns) else ends_ns end;
        return array[least(9223372036854775807, ends_ns + used), token_ns, now_ns, 0, ends_ns];
    end if;
    if at_ns - pglimit.step_ns() > now_ns then
        full_ns := greatest(1, full_ns - (at_ns - now_ns));
        until_ns := greatest(0, until_ns - (at_ns - now_ns));
        at_ns := now_ns;
    end if;
    now_ns := greatest(now_ns, at_ns);
    if leased_ns > 0 and until_ns <= now_ns then
        full_ns := least(9223372036854775807, greatest(full_ns, until_ns)::numeric + leased_ns);
        at_ns := greatest(at_ns, until_ns);
        leased_ns := 0;
    end if;
    if ends_ns is not null then
        used := div(greatest(0, full_ns - now_ns)::numeric + b[2] - 1, b[2]) + div(leased_ns::numeric + b[2] - 1, b[2]);
        return array[least(9223372036854775807, ends_ns + used), token_ns, now_ns, 0, ends_ns];
    end if;
    return array[
        greatest(pglimit.read_full_ns(full_ns, b[2], at_ns, now_ns, token_ns), now_ns), token_ns, now_ns,
        pglimit.read_full_ns(leased_ns, b[2], 0, 0, token_ns), case when leased_ns > 0 then until_ns else 0 end]; -- a lease is a debt of which nothing is refilled
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_wait_ns.sql
-- +goose StatementBegin
-- Returns how long it takes from now_ns, in nanoseconds, until a bucket has ask tokens, if nobody takes
-- any: at most the largest bigint. b is its row as of token_bucket_read, not ahead of the clock by more than
-- step_ns; zeros: there is none. token_ns and window_ns are prices of a token and of a burst. ask is at most a burst.
create or replace function pglimit.token_bucket_wait_ns(b bigint[], now_ns bigint, ask bigint, token_ns bigint, window_ns bigint) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    rest_ns numeric; -- the bucket may owe that much
    from_ns bigint := now_ns;
    there_ns numeric := now_ns;
begin
    if b[4] = 0 and b[5] > 0 then -- of a calendar window, which gives all back at its end
        return least(greatest(0, b[5] - now_ns), pglimit.token_bucket_wait_ns(
            pglimit.token_bucket_read(b, now_ns, token_ns), now_ns, ask, token_ns, window_ns));
    end if;
    while b[2] > 0 loop
        rest_ns := window_ns - ask * token_ns - pglimit.read_full_ns(b[4], b[2], 0, 0, token_ns);
        -- The inverse of read_full_ns: the bucket has been refilled at the faster of both prices, so the earlier of two times counts.
        there_ns := greatest(from_ns, least(
            b[1] - div(rest_ns * b[2], token_ns),
            b[3] - rest_ns + div(greatest(0, b[1] - b[3]) * token_ns::numeric + b[2] - 1, b[2])));
        exit when b[4] = 0 or rest_ns >= 0 and there_ns < b[5];
        -- Not while the lease is out. It counts as spent when it expires.
        from_ns := greatest(now_ns, b[5]);
        b := pglimit.token_bucket_read(b, greatest(b[3], b[5]), b[2]); -- at_ns of a row that was written by hand may be later
    end loop;
    return least(there_ns, 9223372036854775807) - now_ns;
end
$$;
-- +goose StatementEnd

-- functions/tokens_there.sql
-- Returns how many tokens a bucket has that is full again at full_ns (0 or less: none): those of a window, less those
-- that have not come back by from_ns. That is the clock; or the end of a calendar window, before which nothing comes
-- back.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.tokens_there(
    full_ns bigint, from_ns bigint, token_ns bigint, window_ns bigint
) returns bigint
language sql immutable parallel safe
return (window_ns - greatest(0, full_ns - from_ns)) / token_ns;

-- functions/token_bucket_decision.sql
-- +goose StatementBegin
-- Returns the decision about a request for n tokens, as allow and peek return it. taken: the seven numbers of
-- token_bucket_take. token_ns, window_ns, calendar: as there. blocked_ns: for how long the key is blocked.
--
-- The result is the same as of Bucket.Decision in internal/bucket: remaining is how many tokens are left.
-- retry_after is the time from "at" until n tokens are there and the key is not blocked, reset_after until
-- the bucket is full, both rounded up to a microsecond.
create or replace function pglimit.token_bucket_decision(
    taken bigint[], blocked_ns bigint, n bigint, token_ns bigint, window_ns bigint, calendar text,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    ahead constant boolean := taken[5] > taken[1] + pglimit.step_ns();
    b bigint[] := case when ahead and (taken[6] > 0 or taken[7] = 0) then pglimit.token_bucket_read(taken[3:7], taken[1], taken[4]) else taken[3:7] end;
    now_ns constant bigint := case when ahead then taken[1] else greatest(taken[1], b[3]) end; -- not dated before the grants that it counts
    bucket constant bigint[] := case when b[2] > 0 and calendar is null then pglimit.token_bucket_read(b, now_ns, token_ns) end;
    used constant bigint := case when b[5] > now_ns then b[1] - b[5] else 0 end; -- in a calendar window
    retry_ns bigint;
    reset_ns bigint;
begin
    granted := taken[2];
    allowed := granted > 0;
    if calendar is not null then
        remaining := greatest(0, window_ns - used);
        retry_ns := case when remaining < n then b[5] - now_ns else 0 end;
        reset_ns := case when used > 0 then b[5] - now_ns else 0 end;
    else
        remaining := greatest(0, pglimit.tokens_there(coalesce(bucket[1], now_ns), now_ns, token_ns, greatest(0, window_ns - coalesce(bucket[4], 0))));
        retry_ns := pglimit.token_bucket_wait_ns(b, now_ns, n, token_ns, window_ns);
        reset_ns := pglimit.token_bucket_wait_ns(b, now_ns, window_ns / token_ns, token_ns, window_ns);
    end if;
    retry_after := ceil(greatest(blocked_ns, retry_ns) / 1000.0)::double precision * interval '1 microsecond';
    reset_after := ceil(reset_ns / 1000.0)::double precision * interval '1 microsecond';
    at := pglimit.time_of(now_ns);
end
$$;
-- +goose StatementEnd

-- functions/clock_ns.sql
-- The database's clock: nanoseconds since 1970, in steps of a microsecond. Every decision
-- is dated by it. It may step back; no function here assumes the contrary.
create or replace function pglimit.clock_ns() returns bigint
language sql volatile parallel safe return (date_part('epoch', clock_timestamp()) * 1000000)::bigint * 1000;

-- functions/token_bucket_blocked_ns.sql
-- Returns for how long after now_ns a key is blocked: 0 if it is not, or has no row (nulls). until_ns and at_ns are
-- those of its row. If the clock has stepped back since it was written, that is as long as it was then.
create or replace function pglimit.token_bucket_blocked_ns(until_ns bigint, at_ns bigint, now_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, until_ns - case when at_ns > now_ns + pglimit.step_ns() then at_ns else now_ns end);

-- functions/token_bucket_count_denial.sql
-- +goose StatementBegin
-- Counts a denial of a key, and blocks the key if it is one too many.
--
-- rule: after, within_ns, for_ns, max_ns and forget_ns. Denials are counted in spans of within_ns; a span begins with
-- the first denial behind the one before. The denial that makes them "after" in a span blocks the key. A block lasts
-- for_ns, and each further one twice as long as the one before, up to max_ns. If the last block ended forget_ns ago or
-- earlier, the next one lasts for_ns again.
--
-- Waits for the row of token_bucket_blocks, locks it (inserts it if it is missing), and reads the clock after that,
-- so that each denial is counted, unless another call has just blocked the key. If the clock has stepped back since
-- the row was written, all its times move by as much. Without a rule it only does that.
--
-- Whoever locks the bucket's row too, locks that first: two calls with a rule for one key in one transaction can deadlock
-- with another one. Must be called with enable_seqscan and jit off.
-- now_ns: when it was counted. blocked_ns: for how long the key is blocked from then on (0: it is not).
create or replace function pglimit.token_bucket_count_denial(_key text, _limiter text, rule bigint[], out now_ns bigint, out blocked_ns bigint)
language plpgsql set search_path = '' as $$
declare
    b record; -- the row
begin
    now_ns := pglimit.clock_ns();
    insert into pglimit.token_bucket_blocks as t (key, limiter, denials, since_ns, level, forget_ns, at_ns)
    values (_key, _limiter, 0, now_ns, 0, now_ns, now_ns)
    on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
    now_ns := pglimit.clock_ns();
    select t.denials, t.since_ns - s.by_ns as since_ns, t.level, t.until_ns - s.by_ns as until_ns, t.forget_ns - s.by_ns as forget_ns, s.by_ns into b
    from pglimit.token_bucket_blocks t
    cross join lateral (select case when t.at_ns > now_ns + pglimit.step_ns() then t.at_ns - now_ns else 0 end as by_ns) s -- the clock's step
    where t.key = _key and t.limiter = _limiter;
    blocked_ns := greatest(0, b.until_ns - now_ns);
    if blocked_ns = 0 and rule is not null then
        if b.denials = 0 or now_ns - b.since_ns >= rule[2] then
            b.denials := 0;
            b.since_ns := now_ns;
        end if;
        b.denials := b.denials + 1;
        if b.denials >= rule[1] then
            b.denials := 0;
            b.level := case when now_ns - b.until_ns < rule[5] then least(b.level, 9223372036854775806) + 1 else 1 end;
            blocked_ns := least(rule[4], rule[3] * power(2::numeric, least(b.level - 1, 62)))::bigint;
            b.until_ns := now_ns + blocked_ns;
        end if;
        b.forget_ns := greatest(b.forget_ns, least(9223372036854775807, greatest(b.since_ns::numeric + rule[2], b.until_ns::numeric + rule[5])));
    elsif b.by_ns = 0 then
        return;
    end if;
    update pglimit.token_bucket_blocks t
    set denials = b.denials, since_ns = greatest(1, b.since_ns), level = b.level, at_ns = now_ns, forget_ns = greatest(1, b.forget_ns),
        until_ns = case when b.until_ns is not null then greatest(1, b.until_ns) end
    where t.key = _key and t.limiter = _limiter;
end
$$;
-- +goose StatementEnd

-- functions/window_end_ns.sql
-- +goose StatementBegin
-- Returns the end of the calendar window in which at_ns lies, in nanoseconds since 1970. It is computed here only:
-- other programs may know other rules of time zones.
--
-- calendar: second, minute, hour, day, week, month or year; perhaps " from " and its first day (of a week: monday to sunday; of a
-- month: 1 to 31, which is its last day if it has less); and a time zone: 'day UTC', 'month from 15 Europe/Berlin'.
--
-- A window of a day or more ends as soon as the zone's date is that of the next one, even if that date has no midnight,
-- or two. Hours are those of the zone, in the repeated hour of autumn too. No step here uses the session's time zone.
-- Windows and the rules of zones begin with a second.
create or replace function pglimit.window_end_ns(calendar text, at_ns bigint) returns bigint
language plpgsql stable strict parallel safe set search_path = '' as $$
declare
    words constant text[] := string_to_array(calendar, ' ');
    first constant text := case when words[2] = 'from' then words[3] end;
    zone constant text := words[cardinality(words)];
    "time" constant timestamptz := to_timestamp(at_ns / 1000000000);
    today timestamp; -- and the others: midnights of the zone's dates
    month timestamp;
    next timestamp;
    days int;
    ends timestamptz;
begin
    if words[1] in ('second', 'minute', 'hour') then
        ends := date_trunc(words[1], "time", zone) + case words[1] when 'second' then interval '1 second' when 'minute' then interval '1 minute' else interval '1 hour' end;
        return date_part('epoch', ends)::bigint * 1000000000;
    end if;
    today := date_trunc('day', "time" at time zone zone);
    if words[1] = 'day' then
        next := today + interval '1 day';
    elsif words[1] = 'month' then
        month := date_trunc('month', today);
        days := coalesce(first, '1')::int - 1;
        next := least(month + interval '1 day' * days, month + interval '1 month - 1 day');
        if today >= next then
            month := month + interval '1 month';
            next := least(month + interval '1 day' * days, month + interval '1 month - 1 day');
        end if;
    elsif words[1] = 'week' then
        days := coalesce(array_position('{monday,tuesday,wednesday,thursday,friday,saturday,sunday}', first), 1);
        next := today + interval '1 day' * (7 - (7 + date_part('isodow', today)::int - days) % 7);
    elsif words[1] = 'year' then
        next := date_trunc('year', today) + interval '1 year';
    end if;
    if next is null then
        raise exception 'pglimit: calendar %: there is no such window', to_json(calendar) using errcode = 'invalid_parameter_value';
    end if;
    ends := next at time zone zone; -- of a midnight that comes twice, the second
    if (ends - interval '30 minutes') at time zone zone >= next then
        ends := ends - case when (ends - interval '1 hour') at time zone zone >= next then interval '1 hour' else interval '30 minutes' end;
    end if;
    return date_part('epoch', ends)::bigint * 1000000000;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_denial.sql
-- +goose StatementBegin
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
        or b[3] > now_ns + (case when b[4] = 0 and b[5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end) then
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
-- +goose StatementEnd

-- functions/token_bucket_lock.sql
-- +goose StatementBegin
-- Locks the row of a bucket, which is inserted, full, if it is missing. Returns null.
create or replace function pglimit.token_bucket_lock(_key text, _limiter text, _token_ns bigint) returns text
language plpgsql set search_path = '' as $$
declare
    now_ns constant bigint := pglimit.clock_ns();
begin
    insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
    values (_key, _limiter, now_ns, _token_ns, now_ns)
    on conflict (key, limiter) do update set at_ns = t.at_ns where false;
    return null;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_look.sql
-- +goose StatementBegin
-- Looks at a bucket and at the block of its key. Locks nothing. _token_ns and _calendar: as for token_bucket_take;
-- the row of a bucket is told to who has a calendar as it means in that window.
--
-- taken: the seven numbers of a denial of token_bucket_take. blocked_ns: for how long the key is blocked (0: it is
-- not). If the clock has stepped back since that was written, the key is blocked for as long as it was then.
create or replace function pglimit.token_bucket_look(
    _key text, _limiter text, _token_ns bigint, _calendar text default null, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
declare
    bucket bigint[];
    block record;
    now_ns bigint;
    ends_ns bigint; -- of the window of the calendar
begin
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into bucket
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    select t.until_ns, t.at_ns into block
    from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    ends_ns := pglimit.window_end_ns(_calendar, now_ns); -- without a row too: a time zone that is none is an error
    if ends_ns is not null and (bucket[4] > 0 or bucket[5] = 0 or bucket[3] > now_ns + pglimit.window_step_ns()) then
        bucket := pglimit.token_bucket_read(bucket, now_ns, _token_ns, ends_ns);
    end if;
    taken := array[now_ns, 0] || coalesce(bucket, '{0,0,0,0,0}');
    blocked_ns := pglimit.token_bucket_blocked_ns(block.until_ns, block.at_ns, now_ns);
end
$$;
-- +goose StatementEnd

-- functions/late_ns.sql
-- A write that comes more than 50 ms behind its clock was kept waiting, and is decided again: its date is too early, so
-- tokens that are refilled meanwhile would come on top of it. That is longer than an impatient call waits for a row
-- (20 ms), and than a busy processor keeps a call waiting that waits for no row.
create or replace function pglimit.late_ns() returns bigint
language sql immutable parallel safe return 50000000::bigint;

-- functions/max_window_ns.sql
-- The longest window of a limit: some 203 years. With the time since 1970, it fits a bigint.
create or replace function pglimit.max_window_ns() returns bigint
language sql immutable parallel safe return 6400000000000000000;

-- functions/in_time.sql
-- +goose StatementBegin
-- Checks a write that is dated at_ns. Returns true, or fails with SQLSTATE 40001 if it is not complete, because
-- another call was faster; or if it had to wait, see late_ns; or if the clock has stepped back since: it may not know
-- a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint, complete boolean default true) returns boolean
language plpgsql volatile set search_path = '' as $$
begin
    if not complete or pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and pglimit.late_ns() then
        raise exception 'pglimit: %',
            case when complete then 'had to wait for another call' else 'a bucket has changed meanwhile' end
            using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;
-- +goose StatementEnd

-- functions/window_ends_ns.sql
-- +goose StatementBegin
-- Returns for each calendar when its window ends in which at_ns lies: see window_end_ns. Null for null.
create or replace function pglimit.window_ends_ns(calendars text[], at_ns bigint) returns bigint[]
language plpgsql stable strict set search_path = '' as $$
begin
    if calendars[1] = all (calendars) then -- as a rule
        return array_fill(pglimit.window_end_ns(calendars[1], at_ns), array[cardinality(calendars)]);
    end if;
    return array(
        select w.ends_ns
        from unnest(calendars) with ordinality u(calendar, number)
        left join (select c.calendar, pglimit.window_end_ns(c.calendar, at_ns) as ends_ns from (select distinct unnest(calendars) as calendar) c) w
        on w.calendar = u.calendar
        order by u.number);
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_decide.sql
-- +goose StatementBegin
-- Decides whatever is not the usual case of token_bucket_take or token_bucket_take_many: for any number of buckets
-- and requests, by themselves or in groups.
--
-- It looks (plain reads, and the clock behind them) and decides in numbers. If nothing is granted, that is all. If
-- sure is true, it then locks the rows of which tokens are asked, in the order of the keys (missing ones are
-- inserted, full), looks and decides once more, and writes: nobody can be faster now. Otherwise it writes at once, in
-- the order of the keys, and fails with SQLSTATE 40001 if another call has changed a row since the look, or it had to
-- wait, see in_time: it has taken nothing then, call again. A row that is ahead of the clock is corrected, once, by a
-- denial too.
--
-- _keys: the buckets, distinct, in the bytewise order of key and limiter. A null is a bucket to leave alone, with its
-- requests. _limiters, _tokens_ns (price of a token), _windows_ns (of a burst) and _calendars (as for
-- token_bucket_take; null: no limit has one): an element for each, or one for all.
-- wants: how many tokens each request asks for, in the order in which they are decided; 0 is a peek. members: the
-- number of its bucket (null: request i is for bucket i). units: it is granted in whole multiples of that (null:
-- all or nothing). aheads_ns: it is also granted what comes back within that time (null: none is).
-- lasts: group i has the requests lasts[i - 1] + 1 to lasts[i]; if they are several, they are for different
-- buckets, each all or nothing, and if one is not granted, none is. (Null: each request is by itself.)
-- None of this is checked here.
--
-- grants: tokens for each request. buckets: eight numbers for each bucket: its number, and the seven of
-- token_bucket_take. Must be called with enable_seqscan and jit off, and with the table's lock, see there.
create or replace function pglimit.token_bucket_decide(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean,
    _calendars text[] default null,
    out grants bigint[], out buckets bigint[]
)
language plpgsql set search_path = '' as $$
declare
    n constant int := cardinality(_keys);
    now_ns bigint;
    ends_ns bigint[]; -- of the windows of the calendars
    b bigint[]; -- a row: five numbers as for token_bucket_read, zeros where there is none
    seen bigint[]; -- the rows, one behind the other
    news bigint[]; -- what they mean now, and with what is taken
    rows bigint[]; -- as they are after the call
    granted bigint[]; -- tokens of each bucket
    asked boolean[]; -- buckets of which tokens are asked
    g int; -- group
    fallen boolean; -- a request of it cannot be granted
    i int; -- bucket
    k int; -- its row is the numbers k + 1 to k + 5
    room_ns bigint;
    unit bigint;
    from_ns bigint; -- see tokens_there
    written boolean;
    complete boolean;
begin
    for try in case when sure then 1 else 2 end .. 2 loop
        seen := '{}';
        for i in 1 .. n loop
            if _keys[i] is null then
                b := null;
            else
                select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into b
                from pglimit.token_bucket t where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]);
            end if;
            seen := seen || coalesce(b, array[0, coalesce(_tokens_ns[i], _tokens_ns[1]), 0, 0, 0]);
        end loop;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_ends_ns(_calendars, now_ns);
        news := '{}';
        for i in 1 .. n loop
            news := news || pglimit.token_bucket_read(seen[i * 5 - 4 : i * 5], now_ns,
                coalesce(_tokens_ns[i], _tokens_ns[1]), ends_ns[least(i, cardinality(ends_ns))]);
        end loop;
        grants := array_fill(0::bigint, array[cardinality(wants)]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        g := 1;
        fallen := false;
        for j in 1 .. cardinality(wants) loop
            i := coalesce(members[j], j);
            continue when _keys[i] is null;
            k := i * 5 - 5;
            room_ns := coalesce(_windows_ns[i], _windows_ns[1]) - news[k + 4];
            unit := coalesce(units[j], greatest(1, wants[j]));
            -- A unit that is larger than the room would be used before leased tokens have come back.
            if unit <= room_ns / news[k + 2] then
                from_ns := case when news[k + 4] = 0 and news[k + 5] > 0 then news[k + 5] else news[k + 3] end;
                grants[j] := greatest(0, least(wants[j], pglimit.tokens_there(
                    news[k + 1], from_ns, news[k + 2], room_ns + coalesce(aheads_ns[j], 0)))) / unit * unit;
            end if;
            asked[i] := asked[i] or wants[j] > 0;
            granted[i] := granted[i] + grants[j];
            news[k + 1] := news[k + 1] + grants[j] * news[k + 2];
            continue when lasts is null;
            fallen := fallen or grants[j] = 0;
            continue when j < lasts[g];
            for f in coalesce(lasts[g - 1], 0) + 1 .. case when fallen then j else 0 end loop
                i := coalesce(members[f], f);
                granted[i] := granted[i] - grants[f];
                news[i * 5 - 4] := news[i * 5 - 4] - grants[f] * news[i * 5 - 3];
                grants[f] := 0;
            end loop;
            g := g + 1;
            fallen := false;
        end loop;
        complete := true;
        written := false;
        rows := seen;
        for i in 1 .. n loop
            k := i * 5 - 5;
            if granted[i] > 0 then
                b := news[k + 1 : k + 5];
            elsif asked[i] and seen[k + 3] > now_ns + (
                case when seen[k + 4] = 0 and seen[k + 5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end) then
                -- The clock has stepped back: a bucket's row keeps its price.
                b := case when seen[k + 4] = 0 and seen[k + 5] > 0 then news[k + 1 : k + 5]
                    else pglimit.token_bucket_read(seen[k + 1 : k + 5], now_ns, seen[k + 2]) end;
            else
                continue;
            end if;
            written := true;
            exit when try = 1;
            if seen[k + 3] = 0 then
                insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_keys[i], coalesce(_limiters[i], _limiters[1]), b[1], b[2], b[3], nullif(b[5], 0))
                on conflict do nothing;
            else
                update pglimit.token_bucket t
                set full_ns = b[1], token_ns = b[2], at_ns = b[3], leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0),
                    padding = null
                where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]) -- and it is as it was seen
                    and array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)]
                        = seen[k + 1 : k + 5];
            end if;
            complete := complete and found;
            rows[k + 1 : k + 5] := b;
        end loop;
        -- It may have waited; behind a lock it has not.
        exit when not written or try = 2 and (sure and complete or pglimit.in_time(now_ns, complete));
        for i in 1 .. n loop
            continue when not asked[i];
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            values (_keys[i], coalesce(_limiters[i], _limiters[1]), now_ns, coalesce(_tokens_ns[i], _tokens_ns[1]), now_ns)
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
        end loop;
    end loop;
    for i in 1 .. n loop
        continue when _keys[i] is null;
        b := rows[i * 5 - 4 : i * 5];
        if ends_ns is not null then
            k := i * 5 - 5;
            if ends_ns[least(i, cardinality(ends_ns))] is not null and seen[k + 3] > 0
                and (seen[k + 4] > 0 or seen[k + 5] = 0 or seen[k + 3] > now_ns + pglimit.window_step_ns()) then
                -- A bucket's row, or one that was far ahead, is told as it means in the asker's window.
                b := news[k + 1 : k + 5];
            end if;
        end if;
        buckets := buckets || array[array[i, news[i * 5 - 2], granted[i]] || b];
    end loop;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_valid_one.sql
-- Returns true if these can be parameters of token_bucket_take. A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_valid_one(
    key text, limiter text, token_ns bigint, window_ns bigint, want bigint, unit bigint
) returns boolean
language sql immutable parallel safe
return key is not null and limiter is not null and window_ns <= pglimit.max_window_ns()
    and unit between 1 and window_ns / token_ns and (want = 0 or unit <= want);

-- functions/transaction_settings.sql
-- Sets lock_timeout to patience (null: not), and synchronous_commit to off if relaxed, until the transaction ends.
--
-- A single expression, so that the planner inlines it. Assign it to something: "perform" is a query of its own.
create or replace function pglimit.transaction_settings(patience text, relaxed boolean) returns text
language sql volatile
return concat(
    case when patience is not null then set_config('lock_timeout', patience, true) end,
    case when relaxed then set_config('synchronous_commit', 'off', true) end);

-- functions/token_bucket_take.sql
-- +goose StatementBegin
-- Takes want tokens from one bucket, in whole multiples of unit (all or nothing, if the two are equal).
--
-- True of every take, of one bucket or of many:
--
--   - A grant locks the rows of its buckets until the transaction ends, or inserts them. A denial locks nothing,
--     unless another call changed the row while this one waited, or there is something to write: denials that are
--     counted, and, once, a row that was written before the clock stepped back.
--   - A grant is decided by the row behind its lock, a denial by a plain read and the clock behind that. It may deny by
--     a row that is being changed: a take can only leave less, and what comes back counts from its commit on.
--   - Several buckets are locked in the bytewise order of key and limiter. Who locks out of order waits for a
--     millisecond only: see token_bucket_take_many.
--   - What a row means to a call with another price, or after the clock stepped back: see token_bucket_read.
--
-- 1. The usual case is one update: of a row with the same price, no lease, and enough for all. A row that does not
--    have enough is not locked. If another call has changed the row while this one waited for it, Postgres checks it
--    again.
-- 2. A look may show that there is no row, which is inserted, or that tokens are lacking, which is a denial.
-- 3. All else is for token_bucket_decide, also what is taken ahead.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- patience: gives up with SQLSTATE 55P03 after that time if another call holds the row (or a little later,
-- if it stands in a queue). Changes lock_timeout until the transaction ends. Null: it waits.
-- _calendar: null, or the limit is _window_ns tokens in each window of that calendar, see window_end_ns; _token_ns is
-- 1. full_ns counts from the window's end then, so nothing is refilled before it.
-- relaxed: the commit need not wait for the disk. Changes synchronous_commit until the transaction ends.
-- ahead_ns: it is also granted what comes back within that time.
--
-- Returns seven numbers: the time of the decision, the tokens granted, and full_ns, token_ns, at_ns, leased_ns and
-- until_ns of the row after it (0: null, or there is no row). Other functions call them taken.
--
-- True of all functions here: what reads before it writes first takes the table's lock that a write takes, because
-- a read that becomes a write can deadlock with REINDEX. Without enable_seqscan = off, a session would keep a plan that
-- was made while the table was small. set_config is assigned to something: "perform" is a query of its own.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text,
    _calendar text default null, relaxed boolean default false, ahead_ns bigint default 0
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint := pglimit.window_end_ns(_calendar, now_ns);
    from_ns bigint := coalesce(ends_ns, now_ns); -- see tokens_there
    writable constant boolean := pg_catalog.current_setting('transaction_read_only') = 'off'; -- a standby can only deny
    seen bigint[];
    taken bigint[];
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if writable and ahead_ns = 0 then
        update pglimit.token_bucket t
        set full_ns = greatest(t.full_ns, t.at_ns, from_ns) + want * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
        where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
            and want <= pglimit.tokens_there(t.full_ns, greatest(t.at_ns, from_ns), _token_ns, _window_ns)
            and t.at_ns <= now_ns + pglimit.step_ns() and unit between 1 and want and want % unit = 0
            -- Checked again after a wait:
            and pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns()
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
    end if;
    if taken is null and ahead_ns = 0 then
        select array[t.full_ns, t.token_ns, t.at_ns, t.until_ns] into seen
        from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := case when now_ns < ends_ns then ends_ns else pglimit.window_end_ns(_calendar, now_ns) end;
        from_ns := coalesce(ends_ns, now_ns);
        if seen is null and unit between 1 and want and want % unit = 0 and want <= _window_ns / _token_ns
            and _window_ns <= pglimit.max_window_ns() then
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns, until_ns)
            values (_key, _limiter, from_ns + want * _token_ns, _token_ns, now_ns, ends_ns)
            on conflict do nothing
            returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
        elsif seen[2] = _token_ns and seen[4] is not distinct from ends_ns and seen[3] <= now_ns + pglimit.step_ns()
            and unit between 1 and _window_ns / _token_ns and unit <= want
            and unit > pglimit.tokens_there(seen[1], greatest(seen[3], from_ns), _token_ns, _window_ns) then
            return array[greatest(seen[3], now_ns), 0, seen[1], _token_ns, seen[3], 0, coalesce(ends_ns, 0)];
        end if;
    end if;
    if taken is null then
        if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, unit)
            and ahead_ns between 0 and pglimit.max_window_ns()) is not true then
            raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %, ahead_ns %',
                want, unit, _token_ns, _window_ns, ahead_ns using errcode = 'invalid_parameter_value';
        elsif want > 0 and writable and ahead_ns > 0 then
            lock table pglimit.token_bucket in row exclusive mode; -- before the read
        end if;
        seen := (pglimit.token_bucket_decide(array[_key], array[_limiter], array[_token_ns], array[_window_ns],
            null, array[want], array[unit], array[ahead_ns], null, true,
            case when _calendar is not null then array[_calendar] end)).buckets;
        taken := array[seen[1][2], seen[1][3], seen[1][4], seen[1][5], seen[1][6], seen[1][7], seen[1][8]];
    elsif pglimit.clock_ns() > taken[1] + pglimit.late_ns() then
        -- The write has waited for a call that changed nothing in the end, so it is dated too early. Behind the lock
        -- it is decided as of now, in the calendar window of now: what was enough then is enough now.
        now_ns := pglimit.clock_ns();
        ends_ns := pglimit.window_end_ns(_calendar, now_ns);
        from_ns := coalesce(ends_ns, now_ns) + want * _token_ns;
        update pglimit.token_bucket t
        set full_ns = case when t.until_ns is not distinct from ends_ns then greatest(t.full_ns, from_ns) else from_ns end,
            at_ns = now_ns, until_ns = ends_ns
        where t.key = _key and t.limiter = _limiter
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
    end if;
    return taken;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_or_block.sql
-- +goose StatementBegin
-- Takes from one bucket as token_bucket_take does, unless the key is blocked. Counts other denials by the rule: see
-- token_bucket_count_denial; or not, if it is '{}'.
--
-- It looks at the block, and, once more, behind the bucket's lock: another call may have blocked the key while this
-- one waited for the row. (In a transaction with repeatable reads that is not seen.) A denial by a plain read locks
-- no bucket.
--
-- The other parameters, and taken: as for token_bucket_take. blocked_ns: for how long the key is blocked (0: it is
-- not).
create or replace function pglimit.token_bucket_take_or_block(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text, rule bigint[],
    _calendar text default null, relaxed boolean default false, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    block record;
    now_ns bigint;
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, unit) and want > 0
        and (rule = '{}' or cardinality(rule) = 5 and 0 < all (rule[1:4]) and 0 <= rule[5] and rule[3] <= rule[4]
            and 3650 * 86400000000000 >= all (rule[2:5]))) is not true then
        raise exception 'token_bucket_take_or_block: want % in units of %, token_ns %, window_ns %, rule %',
            want, unit, _token_ns, _window_ns, rule using errcode = 'invalid_parameter_value';
    end if;
    if pg_catalog.current_setting('transaction_read_only') = 'off' then
        lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_denial(_key, _limiter, _token_ns, _window_ns, unit, _calendar);
    for look in 1 .. 2 loop
        select t.until_ns, t.at_ns into block
        from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
        now_ns := coalesce(taken[1], pglimit.clock_ns()); -- one date for the bucket and the block
        blocked_ns := pglimit.token_bucket_blocked_ns(block.until_ns, block.at_ns, now_ns);
        if blocked_ns > 0 then
            if block.at_ns > now_ns + pglimit.step_ns() then
                block := pglimit.token_bucket_count_denial(_key, _limiter, null); -- moves the block
            end if;
            taken := coalesce(taken, (pglimit.token_bucket_look(_key, _limiter, _token_ns, _calendar)).taken);
            taken[1] := now_ns;
            return;
        end if;
        exit when look = 2 or taken is not null;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    if taken is null then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, unit, null, _calendar);
    end if;
    if taken[2] = 0 and rule <> '{}' then
        block := pglimit.token_bucket_count_denial(_key, _limiter, rule);
        blocked_ns := block.blocked_ns;
        taken[1] := case when blocked_ns > 0 then block.now_ns else taken[1] end;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/allow.sql
-- +goose StatementBegin
-- Takes n tokens of a bucket, all or nothing, and returns the decision. For programs in any language:
--
--     select * from pglimit.allow('api', 'user:42');
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20');
--     select * from pglimit.allow('api', 'user:42', tokens => 10, period => '1 second', burst => 20, n => 3);
--
-- It takes from the same bucket, by the same rules, as a Go Limiter of that name with the strategy token_bucket.
-- limiter and key name the bucket: what is limited, and for whom. The limit is a text as ParseLimit reads it in Go,
-- or numbers; without a burst, the burst equals the tokens. Without a limit, or with a null, the table pglimit.limits
-- decides. A key that a Go Limiter with Config.Block has blocked is denied; this function counts no denials.
--
-- A grant waits for any call that holds the row, and locks it until the transaction ends; a rollback undoes it. (A
-- transaction that takes from several keys must name them in one order, as every other does.) A denial locks and
-- writes nothing, unless another call took the tokens meanwhile, or, once, the clock has stepped back since the key's
-- last write. Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it. retry_after: the
-- time from "at" until n tokens are there, if nobody takes any, and the key is not blocked. reset_after: until the
-- bucket is full. "at": the database's clock at the decision. observed: what a rule of the table that is only observed
-- would have allowed; null: there is none. Fails with SQLSTATE 22023, and has taken nothing, if limiter, key
-- or n is null, an argument is nonsense, or there is no limit; with 55000, naming the row, if the rule that decides
-- cannot be read.
create or replace function pglimit.allow(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz, out observed boolean
)
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := allow.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := allow.limiter;
    asked record;
    answer record;
    beside bigint[]; -- prices of a rule that is only observed
    beside_calendar text;
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.allowed, r.retry_after, r.retry_after, r.at, r.live, r.beside, r.beside_calendar
        into allowed, retry_after, reset_after, at, limit_text, beside, beside_calendar
        from pglimit.rule_of(limiter collate "C", key collate "C", n) r;
        if allowed is not null then
            granted := case when allowed then n else 0 end;
            remaining := case when not allowed then 0 end;
            return;
        end if;
    end if;
    asked := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    answer := pglimit.token_bucket_take_or_block(_key, _limiter, asked.token_ns, asked.window_ns, n, n, null, '{}', asked.calendar);
    select d.* into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(answer.taken, answer.blocked_ns, n, asked.token_ns, asked.window_ns, asked.calendar) d;
    if beside is not null then -- in a bucket of its own. More than its burst is denied
        observed := n <= beside[2] / beside[1]
            and (pglimit.token_bucket_take_or_block(_key, _limiter || ' (observed)', beside[1], beside[2], n, n, null, '{}', beside_calendar)).taken[2] > 0;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/blocks.sql
-- The keys that are denied and blocked, for a person in psql:
--     select * from pglimit.blocks where blocked_until is not null;
create or replace view pglimit.blocks as
select
    'token_bucket' as strategy, b.limiter, b.key,
    b.denials, b.level,
    case when pglimit.token_bucket_blocked_ns(b.until_ns, b.at_ns, now_ns) > 0
        then to_timestamp((now_ns + pglimit.token_bucket_blocked_ns(b.until_ns, b.at_ns, now_ns)) / 1000000000.0) end as blocked_until,
    to_timestamp(b.at_ns / 1000000000.0) as last_counted_at
from (select pglimit.clock_ns() as now_ns offset 0) clock
cross join pglimit.token_bucket_blocks b;
comment on view pglimit.blocks is 'One row per key with denials that were counted and not swept since: denials in the span that goes on, level (how many blocks in a row), blocked_until (null: not blocked)';

-- functions/buckets.sql
-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';
-- A bucket of a calendar window has no seconds_per_token: all that was taken comes back at full_at.
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.buckets as
select
    b.strategy, b.limiter, b.key,
    case when b.in_window then case when b.until_ns > b.now_ns then (b.full_ns - b.until_ns)::bigint else 0 end
        else least(9223372036854775807, ceil(greatest(0, b.full_ns - greatest(b.now_ns, b.ahead_ns)) / b.token_ns))::bigint
    end as tokens_owed,
    ceil(b.leased_ns / b.token_ns)::bigint as tokens_leased,
    case when not b.in_window then trim_scale(b.token_ns / 1000000000.0) end as seconds_per_token,
    to_timestamp(b.at_ns / 1000000000.0) as last_taken_at,
    to_timestamp((case when b.in_window then b.until_ns when b.leased_ns > 0 then greatest(b.full_ns, b.until_ns) + b.leased_ns else b.full_ns end - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) as full_at
from (
    select strategy, key, limiter, token_ns, at_ns, until_ns, now_ns, leased_ns is null and until_ns is not null as in_window,
        case when leased_ns > 0 and until_ns <= now_ns then greatest(full_ns, until_ns)::numeric + leased_ns else full_ns end as full_ns,
        case when leased_ns > 0 and until_ns > now_ns then leased_ns::numeric else 0 end as leased_ns,
        case when at_ns > now_ns + pglimit.step_ns() then at_ns else 0 end as ahead_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    cross join (
        select 'token_bucket' as strategy, key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns from pglimit.token_bucket
        union all
        select 'upsert', key, limiter, full_ns, token_ns, at_ns, null, null from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, full_ns, token_ns, at_ns, null, null from pglimit.for_update_nowait
    ) t
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';

-- functions/ns_of.sql
-- The time in nanoseconds since 1970.
create or replace function pglimit.ns_of("time" timestamptz) returns bigint
language sql immutable parallel safe return (extract(epoch from "time") * 1000000)::bigint * 1000;

-- functions/peek.sql
-- +goose StatementBegin
-- Looks at a bucket without taking anything. Parameters and result are as for pglimit.allow; allowed says whether n
-- tokens are there and the key is not blocked, granted is 0, and observed null. A plain read: locks nothing, waits for
-- nobody.
create or replace function pglimit.peek(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz, out observed boolean
)
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := peek.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := peek.limiter;
    asked record;
    looked record;
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.allowed, 0, r.retry_after, r.retry_after, r.at, r.live into allowed, granted, retry_after, reset_after, at, limit_text
        from pglimit.rule_of(limiter collate "C", key collate "C", n) r;
        if allowed is not null then
            remaining := case when not allowed then 0 end;
            return;
        end if;
    end if;
    asked := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    looked := pglimit.token_bucket_look(_key, _limiter, asked.token_ns, asked.calendar);
    select d.remaining >= n and looked.blocked_ns = 0, d.granted, d.remaining, d.retry_after, d.reset_after, d.at
    into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(looked.taken, looked.blocked_ns, n, asked.token_ns, asked.window_ns, asked.calendar) d;
end
$$;
-- +goose StatementEnd

-- functions/reset.sql
-- +goose StatementBegin
-- Fills a bucket by deleting its row: no row means full. Deletes the row of the key's denials, too, which ends its
-- block. limiter and key: as for pglimit.allow. Waits for any call that holds a row, and locks it until the
-- transaction ends. Filling a full bucket does nothing.
create or replace function pglimit.reset(limiter text, key text) returns void
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
declare
    _key constant text collate "default" := reset.key; -- whatever the caller's collation is
begin
    perform pglimit.request_ns(limiter, key, null, 1, 1, '1 second', null); -- checks the names
    delete from pglimit.token_bucket b where b.key = _key and b.limiter = reset.limiter collate "C";
    delete from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = reset.limiter collate "C";
end
$$;
-- +goose StatementEnd

-- functions/schema_version.sql
-- +goose StatementBegin
-- The last migration of the release that these functions are of. A program of an older release, which finds a higher one than its own,
-- does not ask whether the functions are as it knows them.
create or replace function pglimit.schema_version() returns bigint
language sql immutable parallel safe set search_path = '' as $$ select 8 $$;
-- +goose StatementEnd

-- functions/token_bucket_asked.sql
-- +goose StatementBegin
-- Returns the buckets of a call for many, numbered from 1. limiters, tokens_ns, windows_ns, asks and ends_ns (null:
-- none has a calendar window) have an element for each key, or one for all. from_ns: the window's end, else now_ns,
-- see tokens_there.
--
-- A single select, so that the planner inlines it. It ends with "offset 0", so that it is read
-- once, in the order of the numbers.
create or replace function pglimit.token_bucket_asked(
    keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[], ends_ns bigint[],
    now_ns bigint default null
) returns table (
    number bigint, key text, limiter text, token_ns bigint, window_ns bigint, ask bigint, ends_ns bigint, from_ns bigint
)
language sql immutable parallel safe
begin atomic
    select u.number, u.key, coalesce(limiters[u.number], limiters[1]), coalesce(tokens_ns[u.number], tokens_ns[1]),
        coalesce(windows_ns[u.number], windows_ns[1]), coalesce(asks[u.number], asks[1]),
        e.ends_ns, coalesce(e.ends_ns, now_ns)
    from unnest(keys) with ordinality u(key, number)
    cross join lateral (select ends_ns[least(u.number, cardinality(ends_ns))] as ends_ns) e
    offset 0;
end;
-- +goose StatementEnd

-- functions/token_bucket_give_back.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- functions/token_bucket_lease.sql
-- +goose StatementBegin
-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one.
--
-- A lease sets a part of the window, leased_ns, aside until until_ns: nobody else can take it and it is not
-- refilled. If it is not settled until then, it counts as spent. All leases of a bucket end with the first: else one
-- that nobody settles would last as long as other processes take new ones. If less than a fifth of ttl_ns is left
-- until then, no new lease is granted.
--
-- Settling takes the lease out of leased_ns, and the bucket owes the spent tokens from then on, at the price in the
-- row. A lease that the row does not know (it has expired, or the bucket was reset) is left alone.
--
-- want: tokens of the new lease at most. share: at most one in that many of the tokens that are there. ttl_ns: how
-- long it lasts at most. settle_tokens, settle_spent, settle_until_ns: the lease to settle, how many of its tokens were
-- spent, and when it expires. The others: as for token_bucket_take.
--
-- Waits for the row, locks it, and inserts it if it is missing. Returns the seven numbers of token_bucket_take: the
-- tokens are those of the new lease, which expires at until_ns.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint, relaxed boolean default false
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint;
    granted bigint := 0;
    seen bigint[];
    bucket bigint[];
    said text;
    asked bigint[]; -- the bucket at the price of the new lease
begin
    if (want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and pglimit.max_window_ns()
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    said := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into seen
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    bucket := case when seen[3] > now_ns + pglimit.step_ns() and (seen[4] > 0 or seen[5] = 0) then pglimit.token_bucket_read(seen, now_ns, seen[2]) else seen end;
    if settle_tokens > 0 and bucket[5] = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket[2] <= bucket[4] then
        bucket[4] := bucket[4] - settle_tokens * bucket[2];
        bucket[5] := case when bucket[4] > 0 then bucket[5] else 0 end;
        bucket[1] := least(9223372036854775807, greatest(bucket[1], now_ns) + settle_spent::numeric * bucket[2]);
        bucket[3] := greatest(bucket[3], now_ns);
    end if;
    asked := pglimit.token_bucket_read(bucket, now_ns, _token_ns);
    asked[5] := case when asked[4] > 0 then asked[5] else now_ns + ttl_ns end;
    if asked[5] - now_ns >= ttl_ns / 5 then
        granted := least(want, greatest(0, pglimit.tokens_there(asked[1], now_ns, _token_ns, greatest(0, _window_ns - asked[4]))) / share);
    end if;
    if granted > 0 then
        bucket := asked;
        bucket[4] := asked[4] + granted * _token_ns;
    end if;
    if bucket <> seen then -- if there was nothing to settle and nothing is granted, nothing has changed
        update pglimit.token_bucket t
        set full_ns = bucket[1], token_ns = bucket[2], at_ns = bucket[3], leased_ns = nullif(bucket[4], 0), until_ns = nullif(bucket[5], 0), padding = null
        where t.key = _key and t.limiter = _limiter;
    end if;
    return array[now_ns, granted] || bucket;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_valid.sql
-- +goose StatementBegin
-- Returns true if these can be parameters of token_bucket_take_many. Without wants, each bucket has one request.
create or replace function pglimit.token_bucket_valid(
    keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], calendars text[]
) returns boolean
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    n constant int := cardinality(keys);
    m constant int := coalesce(cardinality(wants), n);
begin
    return n > 0 and m > 0 and array_position(keys, null) is null and array_position(limiters, null) is null
        and cardinality(limiters) in (1, n) and cardinality(tokens_ns) in (1, n) and cardinality(windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and (calendars is null or cardinality(calendars) in (1, n))
        and 0 < all (tokens_ns) and 0 < all (windows_ns) and pglimit.max_window_ns() >= all (windows_ns) and 0 <= all (asks)
        and (wants is null or 0 <= all (wants)) and (units is null or cardinality(units) = m and 1 <= all (units))
        and (aheads_ns is null or cardinality(aheads_ns) = m and 0 <= all (aheads_ns) and pglimit.max_window_ns() >= all (aheads_ns))
        and (members is null and m = n or cardinality(members) = m and 1 <= all (members) and n >= all (members))
        and (lasts is null or lasts[cardinality(lasts)] = m and 0 <= all (lasts) and m >= all (lasts));
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_many.sql
-- +goose StatementBegin
-- Takes from many buckets in one call, as of one reading of the clock, or as of the last write of a row if that is
-- later.
--
-- 1. The usual case is one update, in the order of the keys, of the rows with the same price, no lease, and enough
--    for all that is asked. A row that does not have enough is not locked, and what is locked is checked again after a
--    wait. With groups (lasts), it updates nothing unless a look of the same statement finds that all rows are so.
-- 2. A look inserts rows that are missing, if there is enough for all that is asked, and denies where tokens are
--    lacking for the one request of a bucket. Not with groups, nor for one bucket.
-- 3. All else is for token_bucket_decide.
--
-- So a call waits for another one at the first key that both have. Behind 1, locks are not in the order of the keys
-- any more: 2 and 3 wait for a millisecond only (lock_timeout, until the transaction ends), because two such calls
-- could wait for each other. The call fails with SQLSTATE 55P03 then, or with 40001, see in_time, and has taken
-- nothing: call once more, or ask for each bucket by itself.
--
-- Parameters are those of token_bucket_decide, and asks: how many tokens are asked of each bucket, in whole units
-- (which is not checked), or one number for all. Without wants, each bucket has one request, for all that is asked,
-- or nothing.
-- sure: all is for token_bucket_decide. patience: as for token_bucket_take; null only for one bucket, or with sure.
--
-- usual: four numbers for each bucket of the usual case: its number, full_ns, at_ns, the time of the decision, and
-- until_ns (0: its limit has no calendar window).
-- rest, grants: the other buckets, and grants, as of token_bucket_decide (without wants, grants mean nothing).
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean, patience text, _calendars text[] default null,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint[] := pglimit.window_ends_ns(_calendars, now_ns);
    n constant int := cardinality(_keys);
    writable constant boolean := not sure and 0 < any (asks) -- where nothing is asked, 3 looks, at two thirds of the price
        and pg_catalog.current_setting('transaction_read_only') = 'off'; -- on a standby it can only deny
    done int := 0; -- buckets that are decided
    missing int;
    inserted int;
    decided record;
begin
    if patience is not null then
        patience := pg_catalog.set_config('lock_timeout', patience, true);
    end if;
    if writable and n > 1 then
        with asked as materialized (
            select * from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks, ends_ns, now_ns)
        ), updates as (
            update pglimit.token_bucket t
            set full_ns = greatest(t.full_ns, t.at_ns, k.from_ns) + k.ask * k.token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
            from asked k
            where t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter and t.token_ns = k.token_ns
                and t.until_ns is not distinct from k.ends_ns and t.at_ns <= pglimit.clock_ns() + pglimit.step_ns()
                and k.ask between 1 and pglimit.tokens_there(t.full_ns, greatest(t.at_ns, k.from_ns), k.token_ns, k.window_ns)
                and (lasts is null or n = (
                    select count(*)
                    from asked k
                    join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter and t.token_ns = k.token_ns
                    where t.until_ns is not distinct from k.ends_ns and t.at_ns <= now_ns + pglimit.step_ns()
                        and k.ask between 1 and pglimit.tokens_there(t.full_ns, greatest(t.at_ns, k.from_ns), k.token_ns, k.window_ns)
                ))
            returning array[k.number, t.full_ns, t.at_ns, coalesce(k.ends_ns, 0)] as "row"
        )
        select array_agg(u."row"), count(*) into usual, done from updates u;
        if done > 0 and pglimit.in_time(now_ns, lasts is null or done = n) and done = n then
            return;
        end if;
    elsif writable and n = 1 and asks[1] between 1 and _windows_ns[1] / _tokens_ns[1]
        and 1 = all (array[cardinality(_limiters), cardinality(_tokens_ns), cardinality(_windows_ns), cardinality(asks)]) then
        rest := array[1 || pglimit.token_bucket_take(_keys[1], _limiters[1], _tokens_ns[1], _windows_ns[1], asks[1], asks[1], null, _calendars[1])];
        if rest[1][3] > 0 or wants is null then
            return;
        end if;
        rest := null;
    end if;
    if (sure is not null and pglimit.token_bucket_valid(
        _keys, _limiters, _tokens_ns, _windows_ns, asks, members, wants, units, aheads_ns, lasts, _calendars)) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short or negative' using errcode = 'invalid_parameter_value';
    elsif writable and n > 1 then
        patience := pg_catalog.set_config('lock_timeout', '1ms', true);
        for i in 1 .. done loop
            _keys[usual[i][1]] := null; -- it is done
        end loop;
    end if;
    if writable and n > 1 and lasts is null then
        now_ns := pglimit.clock_ns(); -- the update may have waited
        ends_ns := pglimit.window_ends_ns(_calendars, now_ns);
        with seen as materialized (
            select k.*, t.key is null as missing, t.full_ns, t.at_ns
            from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks, ends_ns, now_ns) k
            left join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter
            where t.key is null and k.key is not null and k.ask between 1 and k.window_ns / k.token_ns
                or wants is null and t.token_ns = k.token_ns and t.until_ns is not distinct from k.ends_ns and t.at_ns <= pglimit.clock_ns() + pglimit.step_ns()
                and k.ask > pglimit.tokens_there(t.full_ns, greatest(t.at_ns, k.from_ns), k.token_ns, k.window_ns)
        ), inserts as (
            insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
            select s.key, s.limiter, s.from_ns + s.ask * s.token_ns, s.token_ns, now_ns, s.ends_ns
            from seen s
            where s.missing
            order by s.number
            on conflict do nothing
            returning 1
        )
        select done + count(*), count(*) filter (where s.missing), (select count(*) from inserts), array_agg(case
            when s.missing then array[s.number, now_ns, s.ask, s.from_ns + s.ask * s.token_ns, s.token_ns, now_ns, 0, coalesce(s.ends_ns, 0)]
            else array[s.number, greatest(s.at_ns, now_ns), 0, s.full_ns, s.token_ns, s.at_ns, 0, coalesce(s.ends_ns, 0)]
        end)
        into done, missing, inserted, rest from seen s;
        if (missing = 0 or pglimit.in_time(now_ns, inserted = missing)) and done = n then
            return;
        end if;
        for i in 1 .. coalesce(cardinality(rest) / 8, 0) loop
            _keys[rest[i][1]] := null;
        end loop;
    end if;
    if 0 < any (coalesce(wants, asks)) then
        lock table pglimit.token_bucket in row exclusive mode; -- before the read: see token_bucket_take
    end if;
    decided := pglimit.token_bucket_decide(_keys, _limiters, _tokens_ns, _windows_ns, members,
        coalesce(wants, case when cardinality(asks) = n then asks else array_fill(asks[1], array[n]) end),
        units, aheads_ns, lasts, sure or n = 1, _calendars);
    grants := decided.grants;
    rest := decided.buckets || rest;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_once.sql
-- +goose StatementBegin
-- Takes want tokens from one bucket, all or nothing, for a request with an ID, as token_bucket_take
-- does. If that ID was granted tokens of this bucket before, takes nothing, and returns what it was
-- granted then: compare that with the request, which may be another one.
--
-- A grant is kept for _ttl_ns, in the transaction of the take; a denial is not kept. If the clock has stepped
-- back since, it is kept for _ttl_ns from now on, once. (After a step forward an ID is free too early.)
--
-- It looks at the bucket, and then for the ID: it may have been granted the last token. If there are enough, it locks
-- the row and looks for the ID once more: of two calls with the same ID at the same time, the second one waits for
-- the row, and finds what the first one was granted, unless that was rolled back. A denial by a plain read locks
-- nothing.
--
-- The other parameters: as for token_bucket_take. taken: as there, of that grant or this. window_ns: its window.
create or replace function pglimit.token_bucket_take_once(
    _key text, _limiter text, _id text, _token_ns bigint, _window_ns bigint, want bigint, _ttl_ns bigint, patience text,
    _calendar text default null, relaxed boolean default false, out taken bigint[], out window_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    kept record;
    now_ns bigint;
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, want)
        and _id <> '' collate "C" and _ttl_ns between 1 and 86400000000000) is not true then
        raise exception 'token_bucket_take_once: id %, ttl_ns %, want %, token_ns %, window_ns %',
            _id, _ttl_ns, want, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
    end if;
    if pg_catalog.current_setting('transaction_read_only') = 'off' then
        lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_denial(_key, _limiter, _token_ns, _window_ns, want, _calendar);
    for look in 1 .. 2 loop
        select t.answer, t.until_ns, t.until_ns - t.ttl_ns as at_ns into kept
        from pglimit.token_bucket_answers t where t.key = _key and t.limiter = _limiter and t.id = _id;
        now_ns := coalesce(taken[1], pglimit.clock_ns()); -- one date for the bucket and the ID
        if kept.at_ns > now_ns + pglimit.step_ns() then
            update pglimit.token_bucket_answers t set until_ns = now_ns + t.ttl_ns
            where t.key = _key and t.limiter = _limiter and t.id = _id and t.until_ns - t.ttl_ns > now_ns + pglimit.step_ns();
        end if;
        if kept.until_ns > now_ns then
            taken := kept.answer[1:7];
            window_ns := kept.answer[8];
            return;
        end if;
        exit when look = 2 or taken is not null;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    window_ns := _window_ns;
    if taken is null then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, _calendar);
    end if;
    if taken[2] > 0 then
        insert into pglimit.token_bucket_answers as t (key, limiter, id, answer, ttl_ns, until_ns)
        values (_key, _limiter, _id, taken || _window_ns, _ttl_ns, taken[1] + _ttl_ns)
        on conflict (key, limiter, id) do update -- it had expired, and was not swept yet
        set answer = excluded.answer, ttl_ns = excluded.ttl_ns, until_ns = excluded.until_ns;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_wait.sql
-- +goose StatementBegin
-- Waits until each of the rows was free for a moment, one after another, and holds none of them while it waits for
-- the next. If patient is false, it waits 5 ms for each, and changes lock_timeout until the transaction ends. If it
-- is true, it fails with SQLSTATE 55P03 where the role's lock_timeout ends the wait. Changes no row.
--
-- _keys, _limiters: as for token_bucket_take_many. Returns the numbers of the buckets for whose rows, there or in
-- the making, 5 ms were not enough.
create or replace function pglimit.token_bucket_wait(_keys text[], _limiters text[], patient boolean) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    held bigint[] := '{}';
begin
    if not patient then
        perform pg_catalog.set_config('lock_timeout', '5ms', true);
    end if;
    for i in 1 .. cardinality(_keys) loop
        begin
            insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
            values (_keys[i], coalesce(_limiters[i], _limiters[1]), 1, 1, 1)
            on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
            raise exception using errcode = 'PGLIM'; -- which undoes the lock, or the insert
        exception
            when sqlstate 'PGLIM' then null;
            when lock_not_available then
                if patient then -- the role has a lock_timeout
                    raise;
                end if;
                held := held || i::bigint;
        end;
    end loop;
    return held;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop function pglimit.token_bucket_wait;
drop function pglimit.token_bucket_take_once;
drop function pglimit.token_bucket_take_many;
drop function pglimit.token_bucket_valid;
drop function pglimit.token_bucket_lease;
drop function pglimit.token_bucket_give_back;
drop function pglimit.token_bucket_asked;
drop function pglimit.schema_version;
drop function pglimit.reset;
drop function pglimit.peek;
drop function pglimit.ns_of;
drop view pglimit.buckets;
drop view pglimit.blocks;
drop function pglimit.allow;
drop function pglimit.token_bucket_take_or_block;
drop function pglimit.token_bucket_take;
drop function pglimit.transaction_settings;
drop function pglimit.token_bucket_valid_one;
drop function pglimit.token_bucket_decide;
drop function pglimit.window_ends_ns;
drop function pglimit.in_time;
drop function pglimit.max_window_ns;
drop function pglimit.late_ns;
drop function pglimit.token_bucket_look;
drop function pglimit.token_bucket_lock;
drop function pglimit.token_bucket_denial;
drop function pglimit.window_end_ns;
drop function pglimit.token_bucket_count_denial;
drop function pglimit.token_bucket_blocked_ns;
drop function pglimit.clock_ns;
drop function pglimit.token_bucket_decision;
drop function pglimit.tokens_there;
drop function pglimit.token_bucket_wait_ns;
drop function pglimit.token_bucket_read;
drop function pglimit.window_step_ns;
drop function pglimit.read_full_ns;
drop function pglimit.time_of;
drop function pglimit.step_ns;
drop function pglimit.request_ns;
drop function pglimit.trimmed;
drop function pglimit.period_ns_of;
drop function pglimit.whole_number;

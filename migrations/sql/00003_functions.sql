-- The functions and views, each as it stands in its file of the folder functions, in
-- an order in which each finds those that it uses. Generated: do not edit, change the
-- file in the folder and run "go generate ./migrations".

-- +goose Up

-- functions/all_or_nothing.sql
-- +goose StatementBegin
-- Plans which of several groups of requests are granted, in their order: a group gets all that it
-- asks for, or nothing. there: how many tokens each bucket has. lasts, members, asks: as for
-- token_bucket_take_groups.
--
-- granted: for each group, whether it is. takes: from each bucket, how many tokens they take.
create or replace function pglimit.all_or_nothing(
    there bigint[], lasts bigint[], members bigint[], asks bigint[], out granted boolean[], out takes bigint[]
)
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    first bigint := 1;
    last bigint;
    next bigint; -- request of the group
begin
    takes := array_fill(0::bigint, array[cardinality(there)]);
    foreach last in array lasts loop
        next := first;
        while next <= last and asks[next] <= there[members[next]] - takes[members[next]] loop -- the sum of both could overflow
            takes[members[next]] := takes[members[next]] + asks[next];
            next := next + 1;
        end loop;
        granted := granted || (next > last);
        for i in first .. case when next > last then 0 else next - 1 end loop
            takes[members[i]] := takes[members[i]] - asks[i];
        end loop;
        first := last + 1;
    end loop;
end
$$;
-- +goose StatementEnd

-- functions/clock_ns.sql
-- The database's clock: nanoseconds since 1970, in steps of a microsecond. Every decision
-- is dated by it. It may step back; no function here assumes the contrary.
create or replace function pglimit.clock_ns() returns bigint
language sql volatile parallel safe
return (date_part('epoch', clock_timestamp()) * 1000000)::bigint * 1000;

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
-- Returns the nanoseconds of the period of a limit, in lower case: a Go duration ("1m30s", "1.5h"),
-- or a whole number of days or weeks ("2w"). A number 1 before the unit may be left out. Null if the
-- text is no period, or one that does not fit a bigint.
--
-- The period may be zero or negative: pglimit.limit_token_ns refuses that.
create or replace function pglimit.period_ns_of(period text) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
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
                -- With a micro sign, a small or a capital Greek mu before the s. Any other unit is none, and makes the sum null.
                else case when encode(convert_to(part[3], 'UTF8'), 'hex') in ('c2b573', 'cebc73', 'ce9c73') then 1000 end
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

-- functions/limit_of.sql
-- +goose StatementBegin
-- Returns the limit that a text spells, as rate.ParseLimit reads it in Go: "100/1m burst 20", "10/s",
-- "5/1d". Without "burst N" the burst equals the tokens. Fails with SQLSTATE 22023 if it cannot be
-- read. Whether such a limit can be kept is checked by pglimit.limit_token_ns.
create or replace function pglimit.limit_of(limit_text text, out tokens bigint, out period_ns bigint, out burst bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    words constant text collate "C" := lower(pglimit.trimmed(limit_text) collate "C");
    rate constant text collate "C" := split_part(words, 'burst', 1);
    tokens_word constant text := pglimit.trimmed(split_part(rate, '/', 1));
    period_word constant text := pglimit.trimmed(substr(rate, strpos(rate, '/') + 1));
    burst_word constant text := pglimit.trimmed(substr(words, nullif(strpos(words, 'burst'), 0) + 5)); -- null: there is none
    why text;
begin
    tokens := pglimit.whole_number(replace(tokens_word, '_', ''));
    period_ns := pglimit.period_ns_of(period_word);
    burst := case when burst_word is null then tokens else pglimit.whole_number(replace(burst_word, '_', '')) end;
    why := case
        when strpos(rate, '/') = 0 then 'there is no "/" between tokens and period'
        when tokens is null then format('tokens %s is not a whole number', to_json(tokens_word))
        when period_ns is null then format('period %s is not a duration such as 500ms, 1m30s or 1d, or a unit such as s, m, h or d', to_json(period_word))
        when burst is null then format('burst %s is not a whole number', to_json(burst_word))
        when burst_word is not null and burst = 0 then 'the burst must be at least 1'
    end;
    if why is not null then
        raise exception 'pglimit: limit %: %', to_json(limit_text), why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. Write it like ''100/1m burst 20''.';
    end if;
end
$$;
-- +goose StatementEnd

-- functions/limit_token_ns.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- functions/request_ns.sql
-- +goose StatementBegin
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
-- +goose StatementEnd

-- functions/step_ns.sql
-- A row that is dated more than 10 ms ahead of the clock was written before the clock stepped
-- back. (Less is no step: a statement may read the clock before another one does, and reach
-- the row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe
return 10000000::bigint;

-- functions/token_bucket_block_lock.sql
-- +goose StatementBegin
-- Locks the row of token_bucket_blocks of a key and returns it; inserts it if it is missing. Waits
-- for any call that holds the row. If the clock has stepped back since the row was written, all its
-- times are moved by as much, once, so that nobody is blocked for the length of the step.
--
-- Whoever locks the bucket's row too, locks that first. Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_block_lock(_key text, _limiter text, out block pglimit.token_bucket_blocks)
language plpgsql
set search_path = ''
as $$
begin
    loop
        select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        insert into pglimit.token_bucket_blocks (key, limiter, denials, since_ns, level, forget_ns, at_ns)
        select _key, _limiter, 0, clock.now_ns, 0, clock.now_ns, clock.now_ns from (select pglimit.clock_ns() as now_ns offset 0) clock
        on conflict do nothing;
    end loop;
    -- The clock is read behind the lock: compared with an older time, any new row would be ahead.
    if block.at_ns > pglimit.clock_ns() + pglimit.step_ns() then
        update pglimit.token_bucket_blocks b
        set since_ns = greatest(1, b.since_ns - (b.at_ns - clock.now_ns)), until_ns = case when b.until_ns > 0 then greatest(1, b.until_ns - (b.at_ns - clock.now_ns)) end,
            forget_ns = greatest(1, b.forget_ns - (b.at_ns - clock.now_ns)), at_ns = clock.now_ns
        from (select pglimit.clock_ns() as now_ns offset 0) clock where b.key = _key and b.limiter = _limiter
        returning b.* into block;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_blocked_ns.sql
-- Returns for how long after now_ns a key is blocked: 0 if it is not, or has no row (b is null). If
-- the clock has stepped back since the row was written, that is as long as it was then.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_blocked_ns(b pglimit.token_bucket_blocks, now_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, coalesce(b.until_ns - case when b.at_ns > now_ns + pglimit.step_ns() then b.at_ns else now_ns end, 0));

-- functions/time_of.sql
-- The time that is ns nanoseconds after the beginning of 1970, rounded down to a microsecond:
-- timestamptz is no finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe
return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

-- functions/converted_full_ns.sql
-- Converts full_ns of a row to another price of a token. full_ns, its_token_ns (the old price)
-- and at_ns are the row's; now_ns is the clock; token_ns is the new price.
--
-- Used tokens stay used, as tokens, rounded up. Since at_ns they have been refilled at the faster of both
-- rates, so the bucket owes the less of two: what it owes at the old price, and what it owed at at_ns, less
-- what was refilled since then at the new one. (Both in tokens times both prices, divided at the end.)
-- Returns at most the largest bigint, which denies every request. Reckons in numeric, because the
-- product of a time and a price does not fit a bigint.
create or replace function pglimit.converted_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return least(9223372036854775807, greatest(now_ns, at_ns) + div(
    greatest(0, least(
        (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
        (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
    )) + its_token_ns - 1, its_token_ns))::bigint;

-- functions/read_full_ns.sql
-- Returns when a bucket is full again, as of now_ns and at the price token_ns of a token. That is
-- full_ns of its row, converted if the row was written at another price (its_token_ns). Without
-- a row (nulls) the bucket is full: 0.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.read_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else pglimit.converted_full_ns(full_ns, its_token_ns, at_ns, now_ns, token_ns)
end;

-- functions/token_bucket_read.sql
-- +goose StatementBegin
-- Returns a row of token_bucket as of now_ns and at the price token_ns of a token: an expired
-- lease counts as spent when it expired, and another price in the row is converted. The row must
-- not be ahead of the clock by more than step_ns. Without a lease, its until_ns means nothing.
--
-- What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(inout b pglimit.token_bucket, now_ns bigint, token_ns bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if b.leased_ns > 0 and coalesce(b.until_ns, 0) <= now_ns then
        b.full_ns := least(9223372036854775807, greatest(b.full_ns, b.until_ns)::numeric + b.leased_ns);
        b.at_ns := greatest(b.at_ns, b.until_ns);
        b.leased_ns := null;
    end if;
    b.full_ns := pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, token_ns);
    b.leased_ns := nullif(pglimit.read_full_ns(b.leased_ns, b.token_ns, 0, 0, token_ns), 0); -- a debt of which nothing is refilled
    b.token_ns := token_ns;
    b.at_ns := greatest(b.at_ns, now_ns);
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_full_ns.sql
-- Returns when a bucket is full again, not counting leases that are out, as of now_ns and at the
-- price token_ns of a token. Null without a row (b is null): the bucket is full.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_full_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when b.token_ns <> token_ns or b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).full_ns
    else b.full_ns
end;

-- functions/token_bucket_leased_ns.sql
-- Returns how many nanoseconds of the window leases set aside, as of now_ns and at the price
-- token_ns of a token. Null: nothing is leased.
create or replace function pglimit.token_bucket_leased_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case when b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).leased_ns end;

-- functions/token_bucket_room_ns.sql
-- Returns the window without what leases set aside, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst. A lease of more than window_ns counts as window_ns, which denies too, and
-- no sum overflows.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_room_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return window_ns - least(window_ns, coalesce(pglimit.token_bucket_leased_ns(b, now_ns, token_ns), 0));

-- functions/token_bucket_free_ns.sql
-- Returns how much of the room (see token_bucket_room_ns) can be taken, in nanoseconds; negative, if
-- the bucket owes more. Without a row (b is null) the bucket is full.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_free_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return pglimit.token_bucket_room_ns(b, now_ns, token_ns, window_ns) - greatest(0, pglimit.token_bucket_full_ns(b, now_ns, token_ns) - now_ns);

-- functions/token_bucket_there.sql
-- Returns how many tokens a bucket has, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst.
create or replace function pglimit.token_bucket_there(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, pglimit.token_bucket_free_ns(b, now_ns, token_ns, window_ns)) / token_ns;

-- functions/repaid_ns.sql
-- Returns when a bucket owes no more than rest_ns, at the price token_ns of a token, if nobody takes
-- any; a time before at_ns means at_ns. full_ns, its_token_ns and at_ns are of its row. Null without a
-- row (nulls): it owes nothing.
--
-- It is the inverse of pglimit.converted_full_ns: since at_ns the bucket has been refilled at the
-- faster of both prices, so the earlier of two times counts.
create or replace function pglimit.repaid_ns(full_ns bigint, its_token_ns bigint, at_ns bigint, rest_ns bigint, token_ns bigint) returns numeric
language sql immutable parallel safe
return least(
    full_ns - div(rest_ns::numeric * its_token_ns::numeric, token_ns::numeric),
    at_ns - rest_ns::numeric + div(greatest(0, full_ns - at_ns) * token_ns::numeric + its_token_ns - 1, its_token_ns::numeric));

-- functions/token_bucket_wait_ns.sql
-- +goose StatementBegin
-- Returns how long it takes from now_ns, in nanoseconds, until a bucket has ask tokens, if nobody takes
-- any. b is its row, not ahead of the clock by more than step_ns, or null. token_ns and window_ns are
-- prices of a token and of a burst. ask is at most a burst.
create or replace function pglimit.token_bucket_wait_ns(b pglimit.token_bucket, now_ns bigint, ask bigint, token_ns bigint, window_ns bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    rest_ns constant bigint := window_ns - ask * token_ns; -- the bucket may owe that much
    leased_ns constant bigint := pglimit.token_bucket_leased_ns(b, now_ns, token_ns);
    there_ns numeric;
    expiry_ns bigint;
begin
    if b.leased_ns > 0 then
        there_ns := case when leased_ns <= rest_ns then greatest(now_ns, pglimit.repaid_ns(b.full_ns, b.token_ns, b.at_ns, rest_ns - leased_ns, token_ns)) end;
        if there_ns < b.until_ns then
            return there_ns - now_ns;
        end if;
        -- Not while the lease is out. It counts as spent when it expires.
        expiry_ns := coalesce(b.until_ns, 0);
        b := pglimit.token_bucket_read(b, expiry_ns, b.token_ns);
    end if;
    there_ns := greatest(now_ns, expiry_ns, pglimit.repaid_ns(b.full_ns, b.token_ns, b.at_ns, rest_ns, token_ns));
    return least(there_ns, 9223372036854775807) - now_ns;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_decision.sql
-- +goose StatementBegin
-- Returns the decision about a request for n tokens, after which b is the bucket's row (null: there is
-- none). _granted: tokens. now_ns: the time of the decision, or a little earlier than b was written.
-- token_ns, window_ns: prices of a token and of a burst. blocked_ns: for how long the key is blocked.
--
-- The result is the same as of Bucket.Decision in internal/bucket: remaining is how many tokens are left.
-- retry_after is the time from "at" until n tokens are there and the key is not blocked, reset_after until
-- the bucket is full, both rounded up to a microsecond.
create or replace function pglimit.token_bucket_decision(
    b pglimit.token_bucket, now_ns bigint, _granted bigint, n bigint, token_ns bigint, window_ns bigint, blocked_ns bigint,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    now_ns := greatest(now_ns, b.at_ns); -- not dated before the grants that it counts
    allowed := _granted > 0;
    granted := _granted;
    remaining := pglimit.token_bucket_there(b, now_ns, token_ns, window_ns);
    retry_after := ceil(greatest(blocked_ns, pglimit.token_bucket_wait_ns(b, now_ns, n, token_ns, window_ns)) / 1000.0)::double precision * interval '1 microsecond';
    reset_after := ceil(pglimit.token_bucket_wait_ns(b, now_ns, window_ns / token_ns, token_ns, window_ns) / 1000.0)::double precision * interval '1 microsecond';
    at := pglimit.time_of(now_ns);
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_stepped.sql
-- +goose StatementBegin
-- Returns a row of token_bucket. If the clock has stepped back since it was written, the row is
-- corrected: the bucket owes now what it owed then.
create or replace function pglimit.token_bucket_stepped(inout b pglimit.token_bucket, now_ns bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if b.at_ns > now_ns + pglimit.step_ns() then
        b.full_ns := greatest(1, b.full_ns - (b.at_ns - now_ns));
        b.until_ns := nullif(greatest(0, b.until_ns - (b.at_ns - now_ns)), 0);
        b.at_ns := now_ns;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/in_turn.sql
-- +goose StatementBegin
-- Returns how many tokens several requests get of a bucket, in their order: each gets as many as it
-- wants and are left, in whole units. The requests are the elements first to last of wants and units.
--
-- room_ns: the window without what leases set aside. free_ns: how much of that can be taken; negative,
-- if more is owed.
-- aheads_ns: each request also gets what comes back within that time, if a unit fits into the room.
-- (A unit that does not would be used before the tokens that are leased have come back.) Null: none
-- of them does.
create or replace function pglimit.in_turn(
    free_ns bigint, room_ns bigint, token_ns bigint, wants bigint[], units bigint[], aheads_ns bigint[], first bigint, last bigint
) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    granted bigint := 0;
begin
    for i in first .. last loop
        if (wants[i] >= 0 and units[i] > 0 and (aheads_ns is null or aheads_ns[i] between 0 and 6400000000000000000 - room_ns)) is not true then
            raise exception 'pglimit.in_turn: request % wants % in units of %, % ns ahead', i, wants[i], units[i], aheads_ns[i] using errcode = 'invalid_parameter_value';
        end if;
        granted := granted + least(wants[i], case
            when units[i] <= room_ns / token_ns then greatest(0, free_ns - granted * token_ns + coalesce(aheads_ns[i], 0)) / token_ns
            else 0
        end) / units[i] * units[i];
    end loop;
    return granted;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_enough.sql
-- Returns whether a row has ask tokens, as of now_ns, at the price token_ns of a token and window_ns
-- of a burst. False says only that the row needs a closer look: it may lack tokens, or have a lease or
-- another price. The caller must check that ask is not more than
-- a burst.
--
-- A single expression, so that the planner inlines it: a short one, because each statement prepares
-- its expressions whenever it runs.
create or replace function pglimit.token_bucket_enough(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint, ask bigint) returns boolean
language sql immutable parallel safe
return ask <= (now_ns + window_ns - b.full_ns) / token_ns and b.token_ns = token_ns and b.leased_ns is null;

-- functions/token_bucket_lock.sql
-- +goose StatementBegin
-- Locks the row of a bucket and returns it. Waits for any call that holds the row. If there is
-- none, inserts the row of a full bucket, at the price _token_ns. If the clock has stepped back
-- since the row was written, the bucket owes now what it owed then: the row is corrected, once,
-- whether or not the request is granted.
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_lock(_key text, _limiter text, _token_ns bigint, out bucket pglimit.token_bucket)
language plpgsql
set search_path = ''
as $$
declare
    now_ns bigint;
begin
    loop
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        now_ns := pglimit.clock_ns();
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        values (_key, _limiter, now_ns, _token_ns, now_ns)
        on conflict do nothing;
    end loop;
    now_ns := pglimit.clock_ns(); -- behind the lock: compared with an older time, a new row would be ahead
    if bucket.at_ns > now_ns + pglimit.step_ns() then
        bucket := pglimit.token_bucket_stepped(bucket, now_ns);
        update pglimit.token_bucket b
        set full_ns = bucket.full_ns, at_ns = bucket.at_ns, until_ns = bucket.until_ns, padding = null
        where b.key = _key and b.limiter = _limiter;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take.sql
-- +goose StatementBegin
-- Takes from one bucket: want tokens in whole multiples of unit (all or nothing, if the two are
-- equal). If wants is not null, takes what several requests want, in turn, or one that takes ahead.
--
-- The usual case is one update: of a row with the same price, no lease, and enough for all. A row
-- that does not have enough is not locked, and what is locked is checked again. (A call that is denied
-- by that second check keeps the lock.)
--
-- In all other cases it looks without a lock, and denies if there is nothing to grant: such a denial
-- locks no row, writes nothing, and waits for nobody. Otherwise it inserts the row, or locks it first and
-- then decides once more.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- wants, units: one element for each of several requests, or null. If they are given, want is the sum
-- of wants, and unit is only checked. aheads_ns: each of them also takes what comes back within that
-- time. Null: none does.
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds the row (or a little later, if
-- it stands in a queue). Changes lock_timeout until the transaction ends.
--
-- granted: tokens. now_ns: the time of the decision. bucket: the row after it (null: there is none).
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, wants bigint[], units bigint[], aheads_ns bigint[], impatient boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    late_ns bigint;
begin
    if (want > 0 and unit between 1 and want and _token_ns > 0 and unit <= _window_ns / _token_ns and _window_ns <= 6400000000000000000) is not true then
        raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %', want, unit, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;

    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;

    granted := want / unit * unit;
    if wants is null and granted <= _window_ns / _token_ns and pg_catalog.current_setting('transaction_read_only') = 'off' then -- on a standby it can only deny
        -- The usual case. If it waits for a call that changes the row, Postgres checks and sets with the
        -- row and the clock of after that.
        update pglimit.token_bucket b
        set (full_ns, at_ns) = (
                select least(greatest(b.full_ns, b.at_ns, clock.now_ns) + granted * _token_ns, greatest(b.at_ns, clock.now_ns) + _window_ns), -- the clock may have stepped back since "where"
                    greatest(b.at_ns, clock.now_ns)
                from (select pglimit.clock_ns() as now_ns offset 0) clock -- one reading
            ),
            padding = null
        where b.key = _key and b.limiter = _limiter
            and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, pglimit.clock_ns(), _token_ns, _window_ns, granted)
        returning b.* into bucket;
        now_ns := bucket.at_ns;
    end if;

    if bucket.key is null then
        for try in 1 .. 2 loop
            if try = 1 then
                select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
            else
                bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
            end if;
            now_ns := pglimit.clock_ns(); -- behind the look or the lock: compared with an older time, a new row would be ahead
            continue when try = 1 and bucket.at_ns > now_ns + pglimit.step_ns(); -- the lock moves such a row
            now_ns := greatest(now_ns, bucket.at_ns); -- a decision is not dated before the grants that it counts

            granted := case
                when wants is null then least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns)) / unit * unit
                else pglimit.in_turn(
                    pglimit.token_bucket_free_ns(bucket, now_ns, _token_ns, _window_ns), pglimit.token_bucket_room_ns(bucket, now_ns, _token_ns, _window_ns), _token_ns,
                    wants, units, aheads_ns, 1, cardinality(wants))
            end;
            if granted = 0 then
                return;
            elsif try = 2 then
                update pglimit.token_bucket b
                set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, _token_ns), now_ns) + granted * _token_ns,
                    token_ns = _token_ns, at_ns = now_ns, padding = null, leased_ns = pglimit.token_bucket_leased_ns(b, now_ns, _token_ns)
                where b.key = _key and b.limiter = _limiter
                returning b.* into bucket;
                return;
            elsif bucket.key is null then
                insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
                values (_key, _limiter, now_ns + granted * _token_ns, _token_ns, now_ns)
                on conflict do nothing
                returning b.* into bucket;
                exit when found; -- else another call was faster
            end if;
        end loop;
    end if;

    -- The update or the insert may have waited for a call that changed nothing in the end. Then the grant
    -- is dated too early: tokens refilled during the wait would come on top of it. Later it would have been
    -- granted as well; so date it later.
    late_ns := pglimit.clock_ns();
    if late_ns > now_ns + 10000000 then -- 10 ms
        update pglimit.token_bucket b set full_ns = greatest(b.full_ns, late_ns + granted * _token_ns), at_ns = late_ns
        where b.key = _key and b.limiter = _limiter
        returning b.* into bucket;
        now_ns := late_ns;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/valid_name.sql
-- +goose StatementBegin
-- Returns the name, of a limiter or a key as field says. Fails with SQLSTATE 22023 if it is null, empty,
-- or longer than that many bytes.
create or replace function pglimit.valid_name(field text, name text, longest int) returns text
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    why constant text := case
        when name is null then 'is null: name it, with a constant if there is only one'
        when name = '' collate "C" then 'is empty: name it, with a constant if there is only one'
        when octet_length(name) > longest then format('has %s bytes: at most %s are allowed (hash what is longer)', octet_length(name), longest)
    end;
begin
    if why is not null then
        raise exception 'pglimit: % %', field, why using errcode = 'invalid_parameter_value', hint = 'Nothing was taken. Limiter and key together name the bucket: what is limited, and for whom.';
    end if;
    return name;
end
$$;
-- +goose StatementEnd

-- functions/allow.sql
-- +goose StatementBegin
-- Takes n tokens of a bucket, all or nothing, and returns the decision. For programs in any language:
--
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20');
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20', n => 3);
--     select * from pglimit.allow('api', 'user:42', tokens => 10, period => '1 second', burst => 20);
--
-- It takes from the same bucket, by the same rules, as a Go Limiter of that name with the strategy
-- token_bucket. limiter and key name the bucket: what is limited, and for whom. The limit is a text as
-- ParseLimit reads it in Go, or numbers; without a burst, the burst equals the tokens.
--
-- A key that a Go Limiter with Config.Block has blocked is denied. This function itself counts no
-- denials, and so blocks no key. It looks for a block before it takes: a call that waits for the row
-- when a block begins may still be granted.
--
-- A grant waits for any call that holds the row, and locks it until the transaction ends. (A transaction
-- that takes from several keys must name them in one order, as every other does.) A denial locks and
-- writes nothing, unless another call took the tokens between the look and the lock, or, once, the
-- clock has stepped back since the key's last write. The grant is undone if the transaction is rolled
-- back. synchronous_commit stays as it is.
--
-- Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it.
-- retry_after: the time from "at" until n tokens are there, if nobody takes any, and the key is not
-- blocked; zero if that is so now. reset_after: until the bucket is full. "at": the database's clock at
-- the decision. Fails with SQLSTATE 22023, and has taken nothing, if an argument is null or nonsense.
create or replace function pglimit.allow(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    -- With the collation of the columns, whatever the caller's is.
    _limiter constant text collate "C" := pglimit.valid_name('limiter', limiter, 128);
    _key constant text collate "C" := pglimit.valid_name('key', key, 1024);
    asked record;
    block pglimit.token_bucket_blocks;
    blocked_ns bigint;
    bucket pglimit.token_bucket;
    now_ns bigint;
    taken record;
    decision record;
begin
    asked := pglimit.request_ns(limit_text collate "C", n, tokens, period, burst);
    -- The locks that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode;
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    if blocked_ns > 0 then
        if block.at_ns > now_ns + pglimit.step_ns() then
            perform pglimit.token_bucket_block_lock(_key, _limiter); -- moves such a row
        end if;
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look
        blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    end if;
    if blocked_ns > 0 then
        decision := pglimit.token_bucket_decision(pglimit.token_bucket_stepped(bucket, now_ns), now_ns, 0, n, asked.token_ns, asked.window_ns, blocked_ns);
    else
        taken := pglimit.token_bucket_take(_key, _limiter, asked.token_ns, asked.window_ns, n, n, null, null, null, false);
        decision := pglimit.token_bucket_decision(taken.bucket, taken.now_ns, taken.granted, n, asked.token_ns, asked.window_ns, 0);
    end if;
    allowed := decision.allowed;
    granted := decision.granted;
    remaining := decision.remaining;
    retry_after := decision.retry_after;
    reset_after := decision.reset_after;
    at := decision.at;
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
    case when pglimit.token_bucket_blocked_ns(b, now_ns) > 0 then to_timestamp((now_ns + pglimit.token_bucket_blocked_ns(b, now_ns)) / 1000000000.0) end as blocked_until,
    to_timestamp(b.at_ns / 1000000000.0) as last_counted_at
from (select pglimit.clock_ns() as now_ns offset 0) clock
cross join pglimit.token_bucket_blocks b;
comment on view pglimit.blocks is 'One row per key with denials that were counted and not swept since: denials in the span that goes on, level (how many blocks in a row), blocked_until (null: not blocked)';

-- functions/buckets.sql
-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.buckets as
select
    b.strategy, b.limiter, b.key,
    least(9223372036854775807, ceil(greatest(0, b.full_ns - greatest(b.now_ns, b.ahead_ns)) / b.token_ns))::bigint as tokens_owed,
    ceil(b.leased_ns / b.token_ns)::bigint as tokens_leased,
    trim_scale(b.token_ns / 1000000000.0) as seconds_per_token,
    to_timestamp(b.at_ns / 1000000000.0) as last_taken_at,
    to_timestamp((case when b.leased_ns > 0 then greatest(b.full_ns, b.until_ns) + b.leased_ns else b.full_ns end - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) as full_at
from (
    select t.*, now_ns, case when t.at_ns > now_ns + pglimit.step_ns() then t.at_ns else 0 end as ahead_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    cross join lateral (
        select 'token_bucket' as strategy, key, limiter, token_ns, at_ns,
            case when leased_ns > 0 and until_ns <= now_ns then greatest(full_ns, until_ns)::numeric + leased_ns else full_ns end as full_ns,
            case when leased_ns > 0 and until_ns > now_ns then leased_ns::numeric else 0 end as leased_ns, until_ns
        from pglimit.token_bucket
        union all
        select 'upsert', key, limiter, token_ns, at_ns, full_ns, 0, null from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, token_ns, at_ns, full_ns, 0, null from pglimit.for_update_nowait
    ) t
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';

-- functions/in_time.sql
-- +goose StatementBegin
-- Checks a row that was just inserted with the date at_ns. Returns true, or fails with SQLSTATE
-- 40001 if at_ns is more than 100 ms ago: a row that is dated too early would refill tokens for
-- the time that its insert waited, on top of its grant. Also fails if the clock has stepped back
-- since at_ns: the insert may have missed a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint) returns boolean
language plpgsql volatile
set search_path = ''
as $$
begin
    if pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and 100000000 then
        raise exception 'pglimit: had to wait for another call' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;
-- +goose StatementEnd

-- functions/ns_of.sql
-- The time in nanoseconds since 1970.
create or replace function pglimit.ns_of("time" timestamptz) returns bigint
language sql immutable parallel safe
return (extract(epoch from "time") * 1000000)::bigint * 1000;

-- functions/token_bucket_look_blocked.sql
-- +goose StatementBegin
-- Reads a bucket, and for how long the key is blocked (0: it is not). Locks nothing. bucket: null if
-- there is no row.
create or replace function pglimit.token_bucket_look_blocked(_key text, _limiter text, out now_ns bigint, out blocked_ns bigint, out bucket pglimit.token_bucket)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the tables were small must be good when they are large
as $$
declare
    block pglimit.token_bucket_blocks;
begin
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
end
$$;
-- +goose StatementEnd

-- functions/peek.sql
-- +goose StatementBegin
-- Looks at a bucket without taking anything. Parameters and result are as for pglimit.allow; allowed
-- says whether n tokens are there and the key is not blocked, and granted is 0. A plain read: locks
-- nothing, waits for nobody.
create or replace function pglimit.peek(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    _limiter constant text collate "C" := pglimit.valid_name('limiter', limiter, 128);
    _key constant text collate "C" := pglimit.valid_name('key', key, 1024);
    asked record;
    looked record;
    decision record;
begin
    asked := pglimit.request_ns(limit_text collate "C", n, tokens, period, burst);
    looked := pglimit.token_bucket_look_blocked(_key, _limiter);
    decision := pglimit.token_bucket_decision(
        pglimit.token_bucket_stepped(looked.bucket, looked.now_ns), looked.now_ns, 0, n, asked.token_ns, asked.window_ns, looked.blocked_ns);
    allowed := decision.remaining >= n and looked.blocked_ns = 0;
    granted := 0;
    remaining := decision.remaining;
    retry_after := decision.retry_after;
    reset_after := decision.reset_after;
    at := decision.at;
end
$$;
-- +goose StatementEnd

-- functions/reset.sql
-- +goose StatementBegin
-- Fills a bucket by deleting its row: no row means full. Deletes the row of the key's denials, too, which
-- ends its block. limiter and key name the bucket as for pglimit.allow. Waits for any call that holds a
-- row, and locks it until the transaction ends. Filling a full bucket does nothing. Fails with SQLSTATE
-- 22023 if an argument is null or nonsense.
create or replace function pglimit.reset(limiter text, key text) returns void
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    _limiter constant text collate "C" := pglimit.valid_name('limiter', limiter, 128);
    _key constant text collate "C" := pglimit.valid_name('key', key, 1024);
begin
    delete from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
    delete from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_answer.sql
-- +goose StatementBegin
-- Returns what a request with an ID was granted, or nulls if its ID is free.
--
-- If the clock has stepped back since the row was written, the row lasts for ttl_ns from now on:
-- how much of that has passed is not known, so it may last longer, but not for the length of the
-- step. This writes, once. (After a step forward an ID is free too early. Nothing shows that.)
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_answer(_key text, _limiter text, _id text, out answer pglimit.token_bucket_answers)
language plpgsql
set search_path = ''
as $$
declare
    now_ns bigint;
begin
    select a.* into answer from pglimit.token_bucket_answers a where a.key = _key and a.limiter = _limiter and a.id = _id;
    now_ns := pglimit.clock_ns();
    if answer.until_ns - answer.ttl_ns > now_ns + pglimit.step_ns() then
        update pglimit.token_bucket_answers a set until_ns = now_ns + a.ttl_ns
        where a.key = _key and a.limiter = _limiter and a.id = _id and a.until_ns - a.ttl_ns > now_ns + pglimit.step_ns();
    elsif answer.until_ns <= now_ns then
        answer := null;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_asked.sql
-- +goose StatementBegin
-- Returns the buckets of a call for many, numbered from 1, without those whose key is null: they
-- are done. limiters, tokens_ns, windows_ns and asks have an element for each key, or one for all.
--
-- A single select, so that the planner inlines it. It ends with "offset 0", so that it is read
-- once, in the order of the numbers.
create or replace function pglimit.token_bucket_asked(keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[])
returns table (number bigint, key text, limiter text, token_ns bigint, window_ns bigint, ask bigint)
language sql immutable parallel safe
begin atomic
    select u.number, u.key, coalesce(limiters[u.number], limiters[1]), coalesce(tokens_ns[u.number], tokens_ns[1]),
        coalesce(windows_ns[u.number], windows_ns[1]), coalesce(asks[u.number], asks[1])
    from unnest(keys) with ordinality u(key, number)
    where u.key is not null
    offset 0;
end;
-- +goose StatementEnd

-- functions/token_bucket_count_denial.sql
-- +goose StatementBegin
-- Counts a denial of a key, and blocks the key if it is one too many.
--
-- Denials are counted in spans of within_ns; a span begins with the first denial behind the one
-- before. The denial that makes them _after in a span blocks the key, and the next count begins
-- behind the block. A block lasts for_ns, and each further one twice as long as the one before, up
-- to max_ns. If the last block ended forget_ns ago or earlier, the next one lasts for_ns again.
--
-- Waits for the row of token_bucket_blocks, locks it, and reads the clock after that, so that each
-- denial is counted. If another call has just blocked the key, writes nothing.
--
-- now_ns: when it was counted. blocked_ns: for how long the key is blocked from then on; 0: it is not.
create or replace function pglimit.token_bucket_count_denial(
    _key text, _limiter text, _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint, out now_ns bigint, out blocked_ns bigint
)
language plpgsql
set search_path = ''
as $$
declare
    block pglimit.token_bucket_blocks;
begin
    block := pglimit.token_bucket_block_lock(_key, _limiter);
    now_ns := pglimit.clock_ns();
    blocked_ns := greatest(0, coalesce(block.until_ns - now_ns, 0));
    if blocked_ns > 0 then
        return;
    end if;
    if block.denials = 0 or now_ns >= block.since_ns + within_ns then
        block.denials := 0;
        block.since_ns := now_ns;
    end if;
    block.denials := block.denials + 1;
    if block.denials >= _after then
        block.level := case when now_ns < block.until_ns + _forget_ns then block.level + 1 else 1 end;
        blocked_ns := least(max_ns, for_ns * power(2::numeric, least(block.level - 1, 62)))::bigint;
        block.until_ns := now_ns + blocked_ns;
        block.denials := 0;
    end if;
    update pglimit.token_bucket_blocks b
    set denials = block.denials, since_ns = block.since_ns, level = block.level, until_ns = block.until_ns, at_ns = greatest(b.at_ns, now_ns),
        forget_ns = greatest(block.since_ns + within_ns, block.until_ns + _forget_ns)
    where b.key = _key and b.limiter = _limiter;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_give_back.sql
-- +goose StatementBegin
-- Gives back tokens that were granted and not used: what they are due is explained in
-- strategies/internal/rows/sql/give_back.sql, which does the same for tables without leases.
--
-- _key, _limiter, _token_ns, _window_ns: as for token_bucket_take. tokens: how many. granted_ns: when
-- they were granted. delay_ns: how much later they were due.
--
-- Waits for any call that holds the row, locks it, and only then reads the clock. Fails with SQLSTATE
-- 22023 if an argument is null, negative or too large.
create or replace function pglimit.token_bucket_give_back(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, tokens bigint, granted_ns bigint, delay_ns bigint
) returns void
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    bucket pglimit.token_bucket;
    now_ns bigint;
    used_ns bigint; -- refilled or reserved since they were due
    back_ns bigint;
begin
    if (_key is not null and _limiter is not null and _token_ns > 0 and _window_ns between _token_ns and 6400000000000000000
        and tokens between 0 and 9223372036854775807 / _token_ns and granted_ns >= 0 and delay_ns between 0 and 9223372036854775807 - granted_ns) is not true then
        raise exception 'token_bucket_give_back: % tokens, token_ns %, window_ns %, granted_ns %, delay_ns %', tokens, _token_ns, _window_ns, granted_ns, delay_ns
            using errcode = 'invalid_parameter_value';
    end if;
    back_ns := tokens * _token_ns;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter and b.token_ns = _token_ns for no key update;
    now_ns := pglimit.clock_ns();
    used_ns := greatest(0, greatest(bucket.at_ns, now_ns, bucket.full_ns - _window_ns + least(_window_ns, coalesce(bucket.leased_ns, 0))) - granted_ns - delay_ns);
    if used_ns > 0 then
        back_ns := least(back_ns, _window_ns);
    end if;
    if bucket.full_ns > now_ns and greatest(bucket.at_ns, now_ns) >= granted_ns and back_ns > used_ns then
        update pglimit.token_bucket b set full_ns = greatest(now_ns, bucket.full_ns - (back_ns - used_ns)) where b.key = _key and b.limiter = _limiter;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_lease.sql
-- +goose StatementBegin
-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one.
--
-- A lease sets a part of the window, leased_ns, aside until until_ns: nobody else can take it and
-- it is not refilled. All leases of a bucket share the until_ns of the first. Otherwise a lease
-- that nobody settles would last as long as other processes take new ones. If less than a fifth
-- of ttl_ns is left until then, no new lease is granted. A lease that is not settled counts as
-- spent when it expires.
--
-- Settling takes the lease out of leased_ns, and the bucket owes the spent tokens from then on. It
-- uses the price of a token in the row, so that it loses nothing that was written under another
-- limit. A lease that the row does not know (it has expired, or the bucket was reset) is left alone.
--
-- _key, _limiter, _token_ns, _window_ns: as in token_bucket_take. want: tokens of the new
-- lease at most. share: at most one in that many of the tokens that are there. ttl_ns: how long
-- the new lease lasts at most. settle_tokens, settle_spent, settle_until_ns: the lease to settle,
-- how many of its tokens were spent, and when it expires.
--
-- Waits for the row, locks it, and inserts it if it is missing. Returns granted: tokens of the new
-- lease, which expires at bucket.until_ns. now_ns: the time of the decision. bucket: the row after it.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    seen pglimit.token_bucket;
begin
    if (want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and 6400000000000000000
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    now_ns := pglimit.clock_ns();

    if settle_tokens > 0 and bucket.until_ns = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket.token_ns <= bucket.leased_ns then
        bucket.leased_ns := nullif(bucket.leased_ns - settle_tokens * bucket.token_ns, 0);
        bucket.full_ns := least(9223372036854775807, greatest(bucket.full_ns, now_ns) + settle_spent::numeric * bucket.token_ns);
        bucket.at_ns := greatest(bucket.at_ns, now_ns);
    end if;

    seen := pglimit.token_bucket_read(bucket, now_ns, _token_ns);
    seen.until_ns := case when seen.leased_ns > 0 then seen.until_ns else now_ns + ttl_ns end;
    granted := case
        when seen.until_ns - now_ns < ttl_ns / 5 then 0
        else least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns) / share)
    end;
    if granted > 0 then
        bucket := seen;
        bucket.leased_ns := coalesce(seen.leased_ns, 0) + granted * _token_ns;
    end if;
    -- If there was nothing to settle and nothing is granted, nothing has changed.
    update pglimit.token_bucket b
    set full_ns = bucket.full_ns, token_ns = bucket.token_ns, at_ns = bucket.at_ns,
        leased_ns = bucket.leased_ns, until_ns = case when bucket.leased_ns > 0 then bucket.until_ns end, padding = null
    where b.key = _key and b.limiter = _limiter and b is distinct from bucket;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_look.sql
-- +goose StatementBegin
-- Returns how many of the tokens that are asked for each of many buckets can grant. A plain read:
-- locks nothing.
--
-- Each row is read as of now_ns, or as of its last write if that is later: the row was written after
-- now_ns was read. If it is ahead of the clock even now, by more than step_ns, the clock has stepped back,
-- and the result for this bucket means nothing.
--
-- Parameters are as for token_bucket_take_many; buckets whose key is null are left out.
-- row: null if the bucket has none.
--
-- A single select, so that the planner inlines it into the statement. There it finds one plan only:
-- for each bucket a look into the primary key. A comparison with any(array[...]) or between can
-- neither be hashed nor merged, and the callers of this function do not allow a scan of the table. (For
-- the limiter, any(array[...]) would not do: up to PostgreSQL 16 a plan may leave it out of the look
-- into the index, and then reads all limiters of a key.)
create or replace function pglimit.token_bucket_look(
    now_ns bigint, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[]
)
returns table (number bigint, key text, limiter text, token_ns bigint, granted bigint, "row" pglimit.token_bucket)
language sql stable parallel safe
begin atomic
    select k.number, k.key, k.limiter, k.token_ns,
        case
            when wants is not null then pglimit.in_turn(
                free_ns, pglimit.token_bucket_room_ns(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns), k.token_ns, wants, units, aheads_ns,
                coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number])
            when k.ask <= greatest(0, free_ns) / k.token_ns then k.ask
            else 0
        end,
        b
    from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks) k
    left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
    cross join lateral (select pglimit.token_bucket_free_ns(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns) as free_ns) t;
end;
-- +goose StatementEnd

-- functions/token_bucket_plan.sql
-- +goose StatementBegin
-- Decides which groups of requests are granted, as of now_ns, and locks the rows that they take from:
-- see token_bucket_take_groups for the parameters and results.
--
-- It looks without a lock. If a group can be granted, it locks the rows that the groups take from (or,
-- if lock_first is true, all rows), in order, inserts those that are missing, looks once more, and
-- decides again. Only a group that is granted then, but was not before, may need a row that is not
-- locked: that fails with SQLSTATE 40001.
--
-- takes: from each bucket, how many tokens the groups take. untouched: seven numbers, as of
-- token_bucket_take_many, for each bucket from which they take none. A bucket whose row is ahead of
-- the clock counts as full: its row denies nothing before it is locked, and corrected.
--
-- Must be called with enable_seqscan off, and with the lock on the table that a write takes.
create or replace function pglimit.token_bucket_plan(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean,
    out now_ns bigint, out granted boolean[], out takes bigint[], out untouched bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    n constant int := cardinality(_keys);
    rows pglimit.token_bucket[];
    bucket pglimit.token_bucket; -- one of them
    there bigint[]; -- tokens in each bucket
    locked boolean[] := array_fill(false, array[n]);
begin
    if (lasts[cardinality(lasts)] = cardinality(asks) and 0 <= all (lasts) and cardinality(asks) >= all (lasts)
        and cardinality(asks) = cardinality(members) and 1 <= all (members) and n >= all (members) and 0 < all (asks)) is not true then
        raise exception 'token_bucket_plan: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    for try in 1 .. 2 loop
        for i in 1 .. case when try = 1 then 0 else n end loop
            if lock_first or takes[i] > 0 then
                perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), coalesce(_tokens_ns[i], _tokens_ns[1]));
                locked[i] := true;
            end if;
        end loop;
        rows := array(
            select b
            from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, null) k
            left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
            order by k.number);
        now_ns := pglimit.clock_ns(); -- behind the look: an older time would date a denial before grants that it counts
        for i in 1 .. n loop
            bucket := rows[i];
            if bucket.at_ns > now_ns + pglimit.step_ns() and not locked[i] then
                there[i] := coalesce(_windows_ns[i], _windows_ns[1]) / coalesce(_tokens_ns[i], _tokens_ns[1]);
            else
                there[i] := pglimit.token_bucket_there(bucket, greatest(now_ns, bucket.at_ns), coalesce(_tokens_ns[i], _tokens_ns[1]), coalesce(_windows_ns[i], _windows_ns[1]));
            end if;
        end loop;
        select p.granted, p.takes into granted, takes from pglimit.all_or_nothing(there, lasts, members, asks) p;
        exit when 0 = all (takes);
    end loop;
    for i in 1 .. n loop
        if takes[i] = 0 then
            bucket := rows[i];
            untouched := untouched || array[array_replace(array[i, 0, bucket.full_ns, bucket.token_ns, bucket.at_ns, bucket.leased_ns, bucket.until_ns], null, 0::bigint)];
        elsif not locked[i] then
            raise exception 'pglimit: a bucket has changed meanwhile' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
        end if;
    end loop;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_groups.sql
-- +goose StatementBegin
-- Takes for groups of requests, in their order. A group gets all that it asks for, or nothing. As of
-- one reading of the clock, or as of the last write of a row if that is later.
--
-- _keys, _limiters, _tokens_ns, _windows_ns: the buckets, as for token_bucket_take_many, each with a
-- request at least.
-- members, asks: for each request its bucket's number, and how many tokens. Group i has the requests
-- lasts[i - 1] + 1 to lasts[i], for different buckets.
-- sums: what all of them ask of each bucket, or one number for all buckets. This is not checked.
--
-- If a look finds that all buckets are the usual case of token_bucket_take_many (there is a row with the
-- same price, no lease, and enough for all), all groups are granted, by the same update. Otherwise
-- token_bucket_plan decides which are, and locks the rows that it takes from, in order. If its look finds
-- none, it locks and writes nothing.
--
-- lock_first: instead locks the rows of all buckets, in order, and inserts those that are missing, also
-- for groups that it denies (unless it can grant nothing). Nobody can be faster. Any other call may give
-- up, and has taken nothing, with SQLSTATE 40001.
--
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds a row. Changes lock_timeout
-- until the transaction ends. If lock_first is false, impatient must be true.
--
-- now_ns: the time of the decisions. granted: one element per group. usual, rest: as of
-- token_bucket_take_many.
create or replace function pglimit.token_bucket_take_groups(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], sums bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean, impatient boolean,
    out now_ns bigint, out granted boolean[], out usual bigint[], out rest bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of call and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    all_usual boolean; -- all buckets are, by the look
    takes bigint[]; -- from each bucket
begin
    if (n > 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(sums) in (1, n)
        and 0 < all (sums) and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and 6400000000000000000 >= all (_windows_ns)
        and cardinality(lasts) > 0 and lock_first is not null and (lock_first or impatient)) is not true then
        raise exception 'token_bucket_take_groups: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    now_ns := pglimit.clock_ns();
    if not lock_first and pg_catalog.current_setting('transaction_read_only') = 'off' then -- else it can only deny
        with asked as materialized (
            select * from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, sums)
        ), look as materialized (
            select not exists (
                select from asked k
                where k.ask > k.window_ns / k.token_ns or not exists (
                    select from pglimit.token_bucket b
                    where b.key = k.key and b.limiter = k.limiter
                        and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
                    offset 0 -- keeps this a look for each bucket
                )
            ) as all_usual
        ), updates as (
            update pglimit.token_bucket b
            set full_ns = greatest(b.full_ns, b.at_ns, now_ns) + k.ask * k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null
            from asked k
            where (select l.all_usual from look l) and b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
                and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
                and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
            returning array[k.number, b.full_ns, b.at_ns] as "row"
        )
        select coalesce(array_agg(u."row"), '{}'), (select l.all_usual from look l) into usual, all_usual from updates u;
    end if;
    if all_usual then
        granted := array_fill(true, array[cardinality(lasts)]);
        if cardinality(usual) < 3 * n or pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
            raise exception 'pglimit: a bucket has changed meanwhile, or was held' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
        end if;
        return;
    end if;

    select p.now_ns, p.granted, p.takes, p.untouched into now_ns, granted, takes, rest
    from pglimit.token_bucket_plan(_keys, _limiters, _tokens_ns, _windows_ns, lasts, members, asks, lock_first) p;
    if 0 = all (takes) then
        return;
    end if;
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), k.token_ns), b.at_ns, now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0
        returning array[k.number, k.ask, b.full_ns, b.token_ns, b.at_ns, coalesce(b.leased_ns, 0), coalesce(b.until_ns, 0)] as "row"
    )
    select array_agg(u."row") || rest into rest from updates u;
    if cardinality(rest) < 7 * n then
        raise exception 'pglimit: a bucket is named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken.';
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_rest.sql
-- +goose StatementBegin
-- Takes from buckets that are not the usual case of token_bucket_take_many: it has no row, not enough
-- tokens for all, a lease or another price, or only peeks ask for it.
--
-- It looks without a lock, and decides. Then it updates and inserts the rows that grant: updates only
-- rows that are still as they were seen, and that nobody holds. A denial locks and writes nothing.
--
-- _keys to aheads_ns: all buckets, as for token_bucket_take_many.
-- now_ns: the time of the decisions. usual: the buckets that are done, as token_bucket_take_many returns
-- them.
--
-- Rows are locked after those of the usual case, and inserted after that, which is not the order of the
-- keys. So this waits for no row: calls that wait for each other would deadlock. Only if another call
-- inserts a key that is missing here, or takes from it since, it waits for 1 ms at most. Leaves
-- lock_timeout changed: the caller must put it back.
--
-- Fails with SQLSTATE 40001 if a bucket has changed meanwhile, another call holds its row, or the row
-- is ahead of the clock; with 55P03 after that millisecond. Returns seven numbers for each bucket: see
-- token_bucket_take_many.
--
-- Must be called with enable_seqscan off, and with the lock on the table that a write takes.
create or replace function pglimit.token_bucket_take_rest(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[],
    now_ns bigint, usual bigint[]
) returns bigint[]
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    changed boolean;
    updated bigint[];
    others bigint[];
begin
    for i in 1 .. cardinality(usual) / 3 loop
        _keys[usual[i][1]] := null; -- this bucket is done
    end loop;
    perform pg_catalog.set_config('lock_timeout', '1ms', true);
    with seen as materialized (
        select * from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns)
    ), free as materialized (
        select s.number, s.key, s.limiter, s.token_ns, s.granted
        from seen s
        join pglimit.token_bucket b on b.key = any (array[s.key]) and b.limiter between s.limiter and s.limiter and b is not distinct from s."row"
        where s.granted > 0 and (s."row").key is not null -- for the others there is nothing to look for
        for no key update of b skip locked
    ), updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), s.token_ns), b.at_ns, now_ns) + s.granted * s.token_ns,
            token_ns = s.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), s.token_ns)
        from free s
        where b.key = any (array[s.key]) and b.limiter between s.limiter and s.limiter
        returning array[s.number, s.granted, b.full_ns, b.token_ns, b.at_ns, coalesce(b.leased_ns, 0), coalesce(b.until_ns, 0)] as "row"
    ), inserts as (
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select s.key, s.limiter, now_ns + s.granted * s.token_ns, s.token_ns, now_ns
        from seen s
        where s.granted > 0 and (s."row").key is null
        order by s.number
        on conflict do nothing
        returning 1
    )
    select (select array_agg(u."row") from updates u),
        array_agg(case
            when s.granted > 0 then array[s.number, s.granted, now_ns + s.granted * s.token_ns, s.token_ns, now_ns, 0, 0]
            else array_replace(array[s.number, 0, (s."row").full_ns, (s."row").token_ns, (s."row").at_ns, (s."row").leased_ns, (s."row").until_ns], null, 0::bigint)
        end) filter (where s.granted = 0 or (s."row").key is null),
        count(*) filter (where s.granted > 0) > (select count(*) from updates) + (select count(*) from inserts)
            -- A row that is ahead of the clock has to be locked and moved first, for which the caller asks it alone. A
            -- peek cannot move it, and is answered; but not as of a write that came after now_ns.
            or bool_or(case
                when coalesce(asks[s.number], asks[1]) <> 0 then (s."row").at_ns > pglimit.clock_ns() + pglimit.step_ns()
                else (s."row").at_ns > now_ns + pglimit.step_ns() and (s."row").at_ns <= pglimit.clock_ns() + pglimit.step_ns()
            end)
    into updated, others, changed
    from seen s;
    if changed then
        raise exception 'pglimit: a bucket has changed meanwhile, is held, or is named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
    return updated || others;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_many.sql
-- +goose StatementBegin
-- Takes from many buckets in one call, as of one reading of the clock, or as of the last write of a row
-- if that is later.
--
-- _keys; _limiters, _tokens_ns, _windows_ns: as for token_bucket_take, with an element for each
-- bucket; all but _keys may have one element for all buckets. Buckets are distinct, and in the
-- bytewise order of key and limiter. (One that is named twice is charged twice, or the call fails.)
-- asks, likewise: how many tokens; 0 is a peek.
-- lasts, wants, units: if they are null, each bucket grants all that is asked, or nothing. Else the
-- requests for bucket i are the elements lasts[i - 1] + 1 to lasts[i] of wants and units; asks are their
-- sums, in whole units (which is not checked). If a bucket does not have so much, they get what is there, in turn.
-- aheads_ns: as for token_bucket_take, likewise.
--
-- The usual case is one update, of the rows with the same price, no lease, and enough for all, in order.
-- A row that does not have enough is not locked, and what is locked is checked again. All other buckets
-- are for token_bucket_take_rest.
--
-- Gives up, and has taken nothing, with SQLSTATE 40001 if a bucket has changed meanwhile, its row is
-- ahead of the clock, the clock stepped back, or 100 ms have passed since now_ns, and if another call
-- holds a row of the rest; with 55P03 if it held one of the usual case for 20 ms, or inserts one that is
-- missing. Then call once more, or ask for each bucket by itself.
--
-- usual: three numbers for each bucket of the usual case: its number, full_ns and at_ns of its row.
-- rest: seven numbers for each other bucket: its number, the tokens granted, and full_ns, token_ns,
-- at_ns, leased_ns and until_ns of its row (0: null, or there is no row).
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[],
    out now_ns bigint, out usual bigint[], out rest bigint[]
)
language plpgsql
set search_path = ''
set lock_timeout = '20ms'
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of batch and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
begin
    if (n >= 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and 0 <= all (asks) and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and 6400000000000000000 >= all (_windows_ns)
        and (lasts is null and wants is null and units is null and aheads_ns is null
            or cardinality(lasts) = n and lasts[n] = cardinality(wants) and cardinality(wants) = cardinality(units) and cardinality(wants) = cardinality(coalesce(aheads_ns, wants)))) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    now_ns := pglimit.clock_ns();
    -- It takes the lock that a write takes, before anything is read (see token_bucket_take).
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(b.full_ns, b.at_ns, now_ns) + k.ask * k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask between 1 and k.window_ns / k.token_ns
            and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
            and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
        returning array[k.number, b.full_ns, b.at_ns] as "row"
    )
    select coalesce(array_agg(u."row"), '{}') into usual from updates u;

    if cardinality(usual) < 3 * n then
        rest := pglimit.token_bucket_take_rest(_keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns, now_ns, usual);
    end if;
    if pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a row was held, or the clock stepped back' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_once.sql
-- +goose StatementBegin
-- Takes want tokens from one bucket, all or nothing, for a request with an ID, as
-- token_bucket_take does. If that ID was granted tokens of this bucket before, takes nothing, and
-- returns what it was granted then: compare that with the request, which may be another one.
--
-- A grant is kept for _ttl_ns, in the transaction of the take. A denial is not kept, and writes
-- nothing.
--
-- Two calls with the same ID at the same time: the second one waits for the bucket's row, which
-- the first one has locked or inserted. Then it finds what the first one was granted, or nothing
-- if that was rolled back. Rows are locked in this order: the bucket's, then the ID's.
--
-- _key, _limiter, _token_ns, _window_ns, want, impatient: as for token_bucket_take.
--
-- now_ns: the time of the decision. answer: what was granted (0: it was denied), and the bucket's
-- row after that.
create or replace function pglimit.token_bucket_take_once(
    _key text, _limiter text, _id text, _token_ns bigint, _window_ns bigint, want bigint, _ttl_ns bigint, impatient boolean,
    out now_ns bigint, out answer pglimit.token_bucket_answers
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    _granted bigint;
    taken record;
    bucket pglimit.token_bucket;
begin
    if (_id <> '' and _ttl_ns between 1 and 86400000000000) is not true then
        raise exception 'token_bucket_take_once: id %, ttl_ns %', _id, _ttl_ns using errcode = 'invalid_parameter_value';
    end if;
    -- The locks that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode;
    loop
        answer := pglimit.token_bucket_answer(_key, _limiter, _id);
        if answer.id is not null then
            now_ns := answer.at_ns;
            return;
        end if;
        -- This was the second look, behind the one that denied: between the first look and that one,
        -- another call with this ID may have been granted the tokens.
        exit when _granted = 0;

        select * into taken from pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, null, null, impatient);
        _granted := taken.granted;
        now_ns := taken.now_ns;
        bucket := taken.bucket;
        continue when _granted = 0;
        insert into pglimit.token_bucket_answers as a (key, limiter, id, granted, token_ns, window_ns, at_ns, full_ns, leased_ns, lease_until_ns, ttl_ns, until_ns)
        values (_key, _limiter, _id, _granted, _token_ns, _window_ns, bucket.at_ns, bucket.full_ns, bucket.leased_ns, bucket.until_ns, _ttl_ns, bucket.at_ns + _ttl_ns)
        on conflict (key, limiter, id) do update
        set granted = excluded.granted, token_ns = excluded.token_ns, window_ns = excluded.window_ns, at_ns = excluded.at_ns, full_ns = excluded.full_ns,
            leased_ns = excluded.leased_ns, lease_until_ns = excluded.lease_until_ns, ttl_ns = excluded.ttl_ns, until_ns = excluded.until_ns
        where a.until_ns <= excluded.at_ns -- it had expired by then, and was not swept yet
        returning a.* into answer;
        exit when found;
        -- Another call with this ID was granted tokens while this one waited for the row.
        update pglimit.token_bucket b set full_ns = b.full_ns - _granted * _token_ns where b.key = _key and b.limiter = _limiter;
    end loop;
    if _granted = 0 then
        answer.granted := 0;
        answer.token_ns := bucket.token_ns;
        answer.at_ns := bucket.at_ns;
        answer.full_ns := bucket.full_ns;
        answer.leased_ns := bucket.leased_ns;
        answer.lease_until_ns := bucket.until_ns;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_or_block.sql
-- +goose StatementBegin
-- Takes want tokens from one bucket, all or nothing, as token_bucket_take does, unless the key is
-- blocked. A denial is counted, and may block the key: see token_bucket_count_denial, which also
-- explains the parameters behind want.
--
-- A call for a blocked key locks and writes nothing, unless the clock has stepped back since it was
-- blocked: then once. Other denials write, to count. A grant looks once more behind the lock of the
-- bucket's row: if the key was blocked while it waited, it is undone there.
-- Rows are locked in this order: the bucket's, then that of token_bucket_blocks.
--
-- _key, _limiter, _token_ns, _window_ns, impatient: as for token_bucket_take.
--
-- granted: tokens. now_ns: the time of the decision. bucket: the row after it (null: there is none).
-- blocked_ns: for how long the key is blocked from now_ns on; 0: it is not.
create or replace function pglimit.token_bucket_take_or_block(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint,
    _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint, impatient boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket, out blocked_ns bigint
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    block pglimit.token_bucket_blocks;
    taken record;
    counted record;
begin
    if (_after > 0 and within_ns between 1 and 315360000000000000 and for_ns between 1 and max_ns and max_ns <= 315360000000000000
        and _forget_ns between 0 and 315360000000000000) is not true then
        raise exception 'token_bucket_take_or_block: after %, within_ns %, for_ns %, max_ns %, forget_ns %', _after, within_ns, for_ns, max_ns, _forget_ns
            using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    -- The locks that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode;
    granted := 0;
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    if blocked_ns > 0 then
        if block.at_ns > now_ns + pglimit.step_ns() then
            perform pglimit.token_bucket_block_lock(_key, _limiter); -- moves such a row
        end if;
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look
        blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
        if blocked_ns > 0 then -- else the block has just ended
            return;
        end if;
    end if;

    select * into taken from pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, null, null, impatient);
    granted := taken.granted;
    now_ns := taken.now_ns;
    bucket := taken.bucket;
    if granted = 0 then
        select * into counted from pglimit.token_bucket_count_denial(_key, _limiter, _after, within_ns, for_ns, max_ns, _forget_ns);
        if counted.blocked_ns > 0 then
            now_ns := counted.now_ns;
            blocked_ns := counted.blocked_ns;
        end if;
        return;
    end if;
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    if blocked_ns > 0 then
        update pglimit.token_bucket b set full_ns = b.full_ns - granted * _token_ns where b.key = _key and b.limiter = _limiter returning b.* into bucket;
        granted := 0;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_wait.sql
-- +goose StatementBegin
-- Waits until each of the rows was free for a moment, one after another, and holds none of them
-- while it waits for the next. If patient is false, it waits 5 ms for each, and changes lock_timeout
-- until the transaction ends. If it is true, it fails with SQLSTATE 55P03 where the role's
-- lock_timeout ends the wait. Changes no row.
--
-- _keys, _limiters, _tokens_ns: as for token_bucket_take_groups. Returns the numbers of the buckets
-- for whose rows, there or in the making, 5 ms were not enough.
create or replace function pglimit.token_bucket_wait(_keys text[], _limiters text[], _tokens_ns bigint[], patient boolean) returns bigint[]
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    held bigint[] := '{}';
begin
    if not patient then
        perform pg_catalog.set_config('lock_timeout', '5ms', true);
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    for i in 1 .. cardinality(_keys) loop
        begin
            perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), coalesce(_tokens_ns[i], _tokens_ns[1]));
            raise exception using errcode = 'PGLIM'; -- which undoes the lock
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
drop function pglimit.token_bucket_take_or_block;
drop function pglimit.token_bucket_take_once;
drop function pglimit.token_bucket_take_many;
drop function pglimit.token_bucket_take_rest;
drop function pglimit.token_bucket_take_groups;
drop function pglimit.token_bucket_plan;
drop function pglimit.token_bucket_look;
drop function pglimit.token_bucket_lease;
drop function pglimit.token_bucket_give_back;
drop function pglimit.token_bucket_count_denial;
drop function pglimit.token_bucket_asked;
drop function pglimit.token_bucket_answer;
drop function pglimit.reset;
drop function pglimit.peek;
drop function pglimit.token_bucket_look_blocked;
drop function pglimit.ns_of;
drop function pglimit.in_time;
drop view pglimit.buckets;
drop view pglimit.blocks;
drop function pglimit.allow;
drop function pglimit.valid_name;
drop function pglimit.token_bucket_take;
drop function pglimit.token_bucket_lock;
drop function pglimit.token_bucket_enough;
drop function pglimit.in_turn;
drop function pglimit.token_bucket_stepped;
drop function pglimit.token_bucket_decision;
drop function pglimit.token_bucket_wait_ns;
drop function pglimit.repaid_ns;
drop function pglimit.token_bucket_there;
drop function pglimit.token_bucket_free_ns;
drop function pglimit.token_bucket_room_ns;
drop function pglimit.token_bucket_leased_ns;
drop function pglimit.token_bucket_full_ns;
drop function pglimit.token_bucket_read;
drop function pglimit.read_full_ns;
drop function pglimit.converted_full_ns;
drop function pglimit.time_of;
drop function pglimit.token_bucket_blocked_ns;
drop function pglimit.token_bucket_block_lock;
drop function pglimit.step_ns;
drop function pglimit.request_ns;
drop function pglimit.limit_token_ns;
drop function pglimit.limit_of;
drop function pglimit.trimmed;
drop function pglimit.period_ns_of;
drop function pglimit.whole_number;
drop function pglimit.clock_ns;
drop function pglimit.all_or_nothing;

-- The functions, and the views and triggers that need them: each as it stands in its file of
-- the folder functions, in an order in which each finds those that it uses. Generated: do not
-- edit, change the file in the folder and run "go generate ./migrations".

-- +goose Up

-- The database's clock: nanoseconds since 1970, in steps of a microsecond. Every decision
-- is dated by it. It may step back; no function here assumes the contrary.
create or replace function pglimit.clock_ns() returns bigint
language sql volatile parallel safe return (date_part('epoch', clock_timestamp()) * 1000000)::bigint * 1000;

-- A write that comes more than 100 ms behind its clock was kept waiting, and is decided again: its date is too early, so
-- what comes back meanwhile would come on top of it. That is longer than an impatient call of Go's waits for a row
-- (about 20 ms), and than a call for a thousand keys takes on a busy processor. (token_bucket_take dates its grant
-- behind the lock already after step_ns: that takes no other call.)
create or replace function pglimit.late_ns() returns bigint
language sql immutable parallel safe return 100000000::bigint;

-- A row that is dated more than 10 ms ahead of the clock was written before the clock stepped back. (Less is no
-- step: a statement may read the clock before another one does, and reach the row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe return 10000000::bigint;

-- +goose StatementBegin
-- Writes into the row of a key what it means now: after a step back of the clock all times move by it, and permits that
-- have expired go. Locks the row.
create or replace function pglimit.permits_settle(_key text, _limiter text) returns void
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
declare
    now_ns bigint;
    back_ns bigint;
begin
    select p.at_ns into back_ns from pglimit.permits p where p.key = _key and p.limiter = _limiter for update;
    now_ns := pglimit.clock_ns(); -- behind the lock
    back_ns := case when back_ns > now_ns + pglimit.step_ns() then back_ns - now_ns else 0 end;
    update pglimit.permits p
    set (holders, tokens, weights, since_ns, until_ns, held) = (
            select coalesce(array_agg(h.holder), '{}'), coalesce(array_agg(h.token), '{}'),
                coalesce(array_agg(h.weight), '{}'), coalesce(array_agg(h.since_ns - back_ns), '{}'),
                coalesce(array_agg(h.until_ns - back_ns), '{}'), coalesce(sum(h.weight), 0)
            from unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns)
                h (holder, token, weight, since_ns, until_ns)
            where h.until_ns - back_ns > now_ns),
        at_ns = p.at_ns - back_ns, forget_ns = p.forget_ns - back_ns
    where p.key = _key and p.limiter = _limiter;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns the rules of a limiter that match a key, also those that are disabled or have expired. The planner inlines
-- it. It is in parts, so that each uses the index of limits_match.
create or replace function pglimit.limits_for(_limiter text, _key text) returns setof pglimit.limits
language sql stable parallel safe
begin atomic
    select * from pglimit.limits where limiter = _limiter and key = _key
    union all select * from pglimit.limits where limiter = _limiter and key is null
        and prefix = any (array(select left(_key, n) from generate_series(1, length(_key)) n))
    union all select * from pglimit.limits where limiter = _limiter and key is null and prefix is null
    union all select * from pglimit.limits where limiter is null;
end;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns how many places a key has by the rules of the table pglimit.limits with the action places. Null: none is for
-- it. Volatile, because a caller that has waited must see the table as it is now. Locks nothing.
create or replace function pglimit.places_of(_limiter text, _key text) returns bigint
language plpgsql volatile set search_path = '' set row_security = off
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return (
        select l.limit_text::bigint from pglimit.limits_for(_limiter, _key) l
        where l.kind = 'places' and l.enabled and (l.expires_at > clock_timestamp()) is not false
        order by l.key, length(l.prefix) desc nulls last, l.temporary desc limit 1);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Gives a permit back. Returns false if the holder has none: it was released before, or has expired, and another call
-- has taken it out. Locks the row until the transaction ends if it returns true. relaxed: the commit need not wait for
-- the disk.
create or replace function pglimit.release(
    limiter text, key text, holder text, relaxed boolean default false, out released boolean
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := release.key; -- whatever the caller's collation is
begin
    update pglimit.permits p
    set (holders, tokens, weights, since_ns, until_ns, held) = (
        select p.holders[:i - 1] || p.holders[i + 1:], p.tokens[:i - 1] || p.tokens[i + 1:],
            p.weights[:i - 1] || p.weights[i + 1:], p.since_ns[:i - 1] || p.since_ns[i + 1:],
            p.until_ns[:i - 1] || p.until_ns[i + 1:], p.held - p.weights[i]
        from array_position(p.holders, release.holder) i)
    where p.key = _key and p.limiter = release.limiter collate "C" and release.holder collate "C" = any (p.holders);
    released := found;
    if relaxed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes a permit last for ttl from now, but never shorter than it did. Returns false if the holder has none: it has
-- expired, or was released. Locks the row until the transaction ends if it returns true.
create or replace function pglimit.renew(
    limiter text, key text, holder text, ttl interval default '30 seconds', out renewed boolean
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := renew.key; -- whatever the caller's collation is
    ttl_ns constant bigint := extract(epoch from renew.ttl) * 1000000000;
    now_ns bigint;
    seen pglimit.permits;
begin
    if (ttl_ns between 100000000 and 86400000000000) is not true then
        raise exception 'pglimit: ttl is %: it must be at least 100 ms and at most a day', ttl
            using errcode = 'invalid_parameter_value';
    end if;
    for try in 1..5 loop
        now_ns := pglimit.clock_ns();
        update pglimit.permits p
        set until_ns[array_position(p.holders, renew.holder)]
                = greatest(now_ns + ttl_ns, p.until_ns[array_position(p.holders, renew.holder)]),
            at_ns = greatest(p.at_ns, now_ns), forget_ns = greatest(p.forget_ns, now_ns + ttl_ns + 3600000000000)
        where p.key = _key and p.limiter = renew.limiter collate "C" and renew.holder collate "C" = any (p.holders)
            and p.until_ns[array_position(p.holders, renew.holder)] > now_ns and p.at_ns <= now_ns + pglimit.step_ns()
            and pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns(); -- checked again after a wait
        renewed := found;
        if renewed then
            return;
        end if;
        select p.* into seen from pglimit.permits p where p.key = _key and p.limiter = renew.limiter collate "C";
        now_ns := pglimit.clock_ns();
        if seen.key is null or renew.holder collate "C" = any (seen.holders) is not true
            or seen.at_ns <= now_ns + pglimit.step_ns()
                and seen.until_ns[array_position(seen.holders, renew.holder)] <= now_ns then
            return;
        end if;
        perform pglimit.permits_settle(renew.key, renew.limiter);
    end loop;
    raise exception 'pglimit: had to wait for other calls'
        using errcode = 'serialization_failure', hint = 'Nothing was changed. Ask again.';
end
$$;
-- +goose StatementEnd

-- Returns how much the digits are in these units. Null if they are no digits, or it does not fit a bigint.
create or replace function pglimit.whole_number(digits text, unit bigint default 1) returns bigint
language sql immutable parallel safe
return case
    when digits collate "C" !~ '^0*[0-9]{1,19}$' then null
    when digits::numeric * unit <= 9223372036854775807 then digits::bigint * unit
end;

-- +goose StatementBegin
-- Returns the nanoseconds of a period, [n]unit: "90s", "36h", "day". Null if the text is none, or one that does not fit
-- a bigint. A month and a year are windows of the calendar. The units are those of rate.ParseLimit.
create or replace function pglimit.period_ns_of(period text) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    unit constant text := ltrim(period, '0123456789');
begin
    return pglimit.whole_number(coalesce(nullif(left(period, -length(unit)), ''), '1'), case
        when unit = 'ns' then 1
        when unit in ('ms', 'millisecond', 'milliseconds') then 1000000
        when unit in ('s', 'sec', 'second', 'seconds') then 1000000000
        when unit in ('m', 'min', 'minute', 'minutes') then 60000000000
        when unit in ('h', 'hour', 'hours') then 3600000000000
        when unit in ('day', 'days') then 86400000000000
        when unit in ('week', 'weeks') then 604800000000000
    end);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
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
-- +goose StatementEnd

-- +goose StatementBegin
-- Sets the rule for a limiter, or of it for a key or the keys that begin with a prefix:
--
--     select pglimit.set_limit('api', '100/1m burst 20', note => 'default');
--     select pglimit.set_limit('api', '5/s', key => 'user:42', note => 'ticket 7', expires_at => now() + '1 hour');
--     select pglimit.set_limit('api', action => 'deny', prefix => 'bot:', note => 'scraping', by => 'ann');
--     select pglimit.set_limit('imports', '5', action => 'places', note => 'default');
--
-- action: enforce; observe, which counts beside and denies nobody; allow; deny; off, for a limiter, or with a null
-- limiter for all: granted unasked; places, for a semaphore, whose number of places is the limit_text. max_wait: how
-- long callers of Wait may wait, as '30s' or a share of the limit's period, '50%'. note: why. by: who; null: as the
-- setting pglimit.by says, or the role. With expires_at it sets the temporary rule for these keys, without it the
-- permanent one, and leaves the other one alone.
--
-- Returns the row that it replaced, or null. Waits for other changes of limits, until they commit. Fails with SQLSTATE
-- 22023 or 23514 if that is no rule.
create or replace function pglimit.set_limit(
    limiter text, limit_text text default null, key text default null, prefix text default null,
    action text default 'enforce', max_wait text default null, note text default null, enabled boolean default true,
    expires_at timestamptz default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif expires_at <= clock_timestamp() then
        raise exception 'pglimit: expires_at is %: that has passed', expires_at
            using errcode = 'invalid_parameter_value';
    end if;
    perform set_config('pglimit.by', coalesce(by, _by), true);
    insert into pglimit.limits
        (limiter, limit_text, key, prefix, action, max_wait, note, enabled, expires_at, changed_by, changed_at)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', now())
    on conflict on constraint limits_match do update
    set (action, limit_text, max_wait, note, enabled, expires_at) = ($5, $2, $6, $7, $8, $9);
    perform set_config('pglimit.by', _by, true);
    return (select h.before from pglimit.limits_history h order by h.id desc limit 1); -- no other change is under way
end
$$;
-- +goose StatementEnd

-- The time that is ns nanoseconds after the beginning of 1970, rounded down to a microsecond:
-- timestamptz is no finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

-- +goose StatementBegin
-- Acquires a permit of some weight (1, if there is only one kind of work) where at most so many places are held at
-- once. It lasts for ttl, unless pglimit.renew makes it longer or pglimit.release gives it back.
--
-- limiter and key: as for pglimit.allow. places: how many there are. Null: as the table pglimit.limits says, or, where
-- it has no rule with the action places for the key, default_places. holder: who asks, a text that nobody else uses. A
-- holder has one permit of a key at most: asking again, with the same weight, renews it and returns its token. Null:
-- the token.
--
-- Returns whether there was a place, the token (larger than all before it of this key), when the permit expires, and,
-- if there was no place, when the first of the others expires if nobody renews it. Never waits for a place. Locks the
-- row until the transaction ends if there was one. If there is none, it is a plain read: it locks nothing, unless the
-- row holds permits that have expired, or was written before the clock stepped back.
--
-- The number of places in the table is read before the update that gives the place, and again behind the lock: a change
-- holds for each call that begins after its commit. Fails with SQLSTATE P0002 if there is no number of places, and with
-- 22023 if an argument is nonsense, the weight is more than that number, or not that of the holder's permit.
create or replace function pglimit.acquire(
    limiter text, key text, places bigint default null, weight bigint default 1, ttl interval default '30 seconds',
    holder text default null, default_places bigint default null,
    out acquired boolean, out token bigint, out expires_at timestamptz, out retry_after interval
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := acquire.key; -- whatever the caller's collation is
    most constant int := 1000; -- holders of a key, who are all in its row
    ttl_ns constant bigint := extract(epoch from acquire.ttl) * 1000000000;
    now_ns bigint;
    free bigint; -- places, if nobody held one
    taken bigint; -- places, with this one
    seen pglimit.permits;
    live record;
begin
    if (octet_length(acquire.limiter) between 1 and 128 and octet_length(acquire.key) between 1 and 1024
        and acquire.weight between 1 and coalesce(acquire.places, 1000000000000000)
        and coalesce(acquire.places, acquire.default_places, 1) between 1 and 1000000000000000
        and ttl_ns between 100000000 and 86400000000000
        and coalesce(octet_length(acquire.holder), 1) between 1 and 256) is not true then
        perform pglimit.request_ns(acquire.limiter, acquire.key, null, 1, 1, '1 second', null); -- checks the names
        raise exception 'pglimit: weight % of % places, ttl %, holder %',
            acquire.weight, coalesce(acquire.places, acquire.default_places), acquire.ttl, acquire.holder
            using errcode = 'invalid_parameter_value', hint = 'Weight: at least 1, and at most places. '
                'Places: at most 1e15. Ttl: 100 ms to a day. Holder: 1 to 256 bytes, or null.';
    end if;
    for try in 1..6 loop
        if try > 5 then
            raise exception 'pglimit: had to wait for other calls'
                using errcode = 'serialization_failure', hint = 'Nothing was changed. Ask again.';
        end if;
        free := coalesce(acquire.places, pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
        now_ns := pglimit.clock_ns();
        update pglimit.permits p
        set last_token = greatest(p.last_token + 1, now_ns), held = p.held + acquire.weight,
            at_ns = greatest(p.at_ns, now_ns), forget_ns = greatest(p.forget_ns, now_ns + ttl_ns + 3600000000000),
            holders = p.holders || coalesce(acquire.holder, greatest(p.last_token + 1, now_ns)::text),
            tokens = p.tokens || greatest(p.last_token + 1, now_ns), weights = p.weights || acquire.weight,
            since_ns = p.since_ns || now_ns, until_ns = p.until_ns || now_ns + ttl_ns
        where p.key = _key and p.limiter = acquire.limiter collate "C"
            and p.held + acquire.weight <= free
            and p.at_ns <= now_ns + pglimit.step_ns() and cardinality(p.holders) < most
            and acquire.holder collate "C" = any (p.holders) is not true
            and pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns() -- checked again after a wait
        returning p.last_token, p.held into token, taken;
        if found then
            exit when acquire.places is not null
                or taken <= coalesce(pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
            -- They are fewer now: once more, behind the lock.
            perform pglimit.release(acquire.limiter, acquire.key, coalesce(acquire.holder, token::text));
            continue;
        end if;
        select p.* into seen from pglimit.permits p where p.key = _key and p.limiter = acquire.limiter collate "C";
        now_ns := pglimit.clock_ns();
        free := coalesce(acquire.places, pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
        if seen.at_ns > now_ns + pglimit.step_ns() then
            perform pglimit.permits_settle(acquire.key, acquire.limiter);
        elsif acquire.holder collate "C" = any (seen.holders)
            and pglimit.renew(acquire.limiter, acquire.key, acquire.holder, acquire.ttl) then
            select p.tokens[h.place], p.weights[h.place] into token, taken
            from pglimit.permits p, array_position(p.holders, acquire.holder) h (place)
            where p.key = _key and p.limiter = acquire.limiter collate "C";
            exit when taken = acquire.weight;
            raise exception 'pglimit: weight %: holder % has a permit of key % already, of weight %',
                acquire.weight, to_json(acquire.holder), to_json(acquire.key), taken
                using errcode = 'invalid_parameter_value',
                hint = 'Nothing was changed. Release that permit first, or ask as another holder.';
        elsif free is null then
            raise exception 'pglimit: places is null, and pglimit.limits has no rule for semaphore % and key %',
                to_json(acquire.limiter), to_json(acquire.key)
                using errcode = 'no_data_found',
                hint = format('Nothing was acquired. Give places or default_places, or set a number for all keys: '
                    'select pglimit.set_limit(%L, ''5'', action => ''places'', note => ''default'')', acquire.limiter);
        elsif acquire.weight > free then
            raise exception 'pglimit: weight %: by pglimit.limits, semaphore % has % places for key %',
                acquire.weight, to_json(acquire.limiter), free, to_json(acquire.key)
                using errcode = 'invalid_parameter_value',
                hint = 'Nothing was acquired. A permit can have as many places as there are.';
        elsif seen.key is null then
            insert into pglimit.permits as p
                (key, limiter, last_token, held, at_ns, forget_ns, holders, tokens, weights, since_ns, until_ns)
            values (acquire.key, acquire.limiter, now_ns, acquire.weight, now_ns, now_ns + ttl_ns + 3600000000000,
                array[coalesce(acquire.holder, now_ns::text)], array[now_ns], array[acquire.weight],
                array[now_ns], array[now_ns + ttl_ns])
            on conflict do nothing returning p.last_token into token;
            exit when found;
        else
            select coalesce(sum(h.weight), 0) as held, count(*) as holders, min(h.until_ns) as first_ns into live
            from unnest(seen.weights, seen.until_ns) h (weight, until_ns) where h.until_ns > now_ns;
            if live.held + acquire.weight > free or live.holders >= most then
                acquired := false;
                retry_after := (live.first_ns - now_ns) / 1000 * interval '1 microsecond';
                return;
            end if;
            perform pglimit.permits_settle(acquire.key, acquire.limiter);
        end if;
    end loop;
    acquired := true;
    expires_at := pglimit.time_of(now_ns + ttl_ns);
end
$$;
-- +goose StatementEnd

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

-- +goose StatementBegin
-- Reads the rules that hold for a request now, for pglimit.allow and pglimit.peek without a limit. Either allowed is
-- not null: a rule grants or denies it; or live is the text of the limit that decides. beside: prices of a token and of
-- a burst, and beside_calendar, of the rule that is only observed (null: there is none that can be read). Locks
-- nothing. Fails with SQLSTATE 22023 if there is no limit, or the request is nonsense, and with 55000, naming the row,
-- if the rule that decides cannot be read or kept.
create or replace function pglimit.rule_of(
    _limiter text, _key text, _n bigint, out allowed boolean, out retry_after interval, out at timestamptz,
    out live text, out beside bigint[], out beside_calendar text
)
language plpgsql set search_path = '' set row_security = off
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    rule record;
    prices bigint[];
    zone text;
    ends_at timestamptz; -- of the live rule
    why text; -- it cannot be read
begin
    perform pglimit.request_ns(_limiter, _key, '1000000000/s burst 6307200000000000000', _n, null, null, null); -- any n
    at := clock_timestamp();
    for rule in
        select distinct on (l.kind) l.*
        from pglimit.limits_for(_limiter, _key) l
        where l.enabled and (l.expires_at > rule_of.at) is not false and l.kind <> 'places'
        order by l.kind, l.key, length(l.prefix) desc nulls last, l.limiter nulls first, l.temporary desc -- off is last
    loop
        if rule.limit_text is not null then
            begin
                select array[r.token_ns, r.window_ns], r.calendar into prices, zone
                from pglimit.request_ns(_limiter, _key, rule.limit_text, 1, null, null, null) r;
                perform pglimit.window_end_ns(zone, pglimit.clock_ns()); -- fails for a time zone that has gone
            exception when invalid_parameter_value then
                continue when rule.action = 'observe';
                why := format('row %s of pglimit.limits: %s', rule.id, regexp_replace(sqlerrm, '^pglimit: ', ''));
            end;
        end if;
        if rule.action = 'observe' then
            beside := prices;
            beside_calendar := zone;
        else
            ends_at := rule.expires_at;
            live := rule.limit_text;
            allowed := case rule.action when 'enforce' then null else rule.action <> 'deny' end;
        end if;
    end loop;
    if allowed is null and why is not null then
        raise exception 'pglimit: %', why using errcode = 'object_not_in_prerequisite_state',
            hint = 'Nothing was taken. Correct the rule, or disable or delete it.';
    elsif allowed is null and live is null then
        raise exception 'pglimit: no limit is given, and pglimit.limits has none for limiter % and key %',
            to_json(_limiter), to_json(_key) using errcode = 'invalid_parameter_value',
            hint = format('Nothing was taken. Give a limit, such as ''100/1m burst 20'', or set one for all keys: '
                'select pglimit.set_limit(%L, ''100/1m burst 20'', note => ''default'')', _limiter);
    end if;
    retry_after := case when allowed then interval '0' else coalesce(ends_at - at, interval '1 hour') end;
end
$$;
-- +goose StatementEnd

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

-- The end of a calendar window stays where it is, if the clock steps back by no more than this: a day.
create or replace function pglimit.window_step_ns() returns bigint
language sql immutable parallel safe return 86400000000000;

-- +goose StatementBegin
-- Returns what a row of token_bucket means as of now_ns, or of its last write if that is later, to a caller who pays
-- token_ns for a token, or counts in a calendar window that ends at ends_ns (null: does not). This is the one function
-- that reads the notes of the last write:
--
--   - The row is ahead of the clock: the clock has stepped back since the write. The bucket owes now what it
--     owed then, so all times of the row move by the step.
--   - It is of a calendar window: full_ns - until_ns tokens were taken, and all come back at until_ns, its end. If the
--     caller's window ends at another time, they stay used until the later end. A bucket owes them since the last
--     write. The end does not move with the clock. But after a step back by more than window_step_ns it is the
--     caller's, and to a caller without a window the tokens are owed from now on: or a clock that was a year ahead
--     locks out for a year.
--   - Its lease has expired: its tokens count as spent when it expired.
--   - It has another price of a token: used tokens stay used, see read_full_ns.sql. In a window all that the bucket
--     owes or has leased counts.
--
-- b and the result are five numbers: full_ns, token_ns, at_ns, leased_ns (0: no lease) and until_ns (0: neither a lease
-- nor a window). All zeros: there is no row. full_ns of the result is not before its at_ns, or the end of its window,
-- and that is not before now_ns. What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(
    b bigint[], now_ns bigint, token_ns bigint, ends_ns bigint default null
) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    full_ns bigint;
    at_ns bigint;
    leased_ns bigint;
    until_ns bigint;
    used numeric; -- tokens
begin
    if b[3] = 0 then
        return array[coalesce(ends_ns, now_ns), token_ns, now_ns, 0, coalesce(ends_ns, 0)];
    elsif b[4] = 0 and b[5] = 0 and ends_ns is null and b[3] - pglimit.step_ns() <= now_ns then
        -- As a rule: no case below applies. (In each transaction, Postgres prepares each expression that it meets.)
        now_ns := greatest(now_ns, b[3]);
        full_ns := greatest(now_ns, pglimit.read_full_ns(b[1], b[2], b[3], now_ns, token_ns));
        return array[full_ns, token_ns, now_ns, 0, 0];
    end if;
    full_ns := b[1]; at_ns := b[3]; leased_ns := b[4]; until_ns := b[5];
    if leased_ns = 0 and until_ns > 0 then
        used := full_ns - until_ns;
        if at_ns - pglimit.window_step_ns() > now_ns then
            until_ns := coalesce(ends_ns, until_ns);
        end if;
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
        pglimit.read_full_ns(leased_ns, b[2], 0, 0, token_ns), -- a lease is a debt of which nothing is refilled
        case when leased_ns > 0 then until_ns else 0 end];
end
$$;
-- +goose StatementEnd

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

-- +goose StatementBegin
-- Returns the decision about a request for n tokens, as allow and peek return it. taken: the seven numbers of
-- token_bucket_take. token_ns, window_ns, calendar: as there. blocked_ns: for how long the key is blocked.
--
-- The result is the same as of Row.Decision in internal/bucket: remaining is how many tokens are left.
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

-- Returns for how long after now_ns a key is blocked: 0 if it is not, or has no row (nulls). until_ns and at_ns are
-- those of its row. If the clock has stepped back since it was written, that is as long as it was then.
create or replace function pglimit.token_bucket_blocked_ns(until_ns bigint, at_ns bigint, now_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, until_ns - case when at_ns > now_ns + pglimit.step_ns() then at_ns else now_ns end);

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

-- Returns whether a row was written before the clock stepped back. b: as for token_bucket_read. The end of a calendar
-- window stays where it is if the clock moves by less than a day, so such a row is right until then.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_ahead(b bigint[], now_ns bigint) returns boolean
language sql immutable parallel safe
return b[3] > now_ns + case when b[4] = 0 and b[5] > 0 then pglimit.window_step_ns() else pglimit.step_ns() end;

-- +goose StatementBegin
-- Returns what a row of token_bucket means to a caller if it was paused, until left_ns from now on or before (below 0),
-- and nobody has taken from it since the end: to what token_bucket_read returns, that there is one token at the end of
-- the pause, or later, if the bucket owes more, and the others come back behind it. So what is taken ahead is due behind
-- the pause, one token after another. Of a calendar window nothing is there until the end of the pause, or of the
-- window, if all is used.
--
-- The other parameters: as for token_bucket_read. window_ns: of a burst.
create or replace function pglimit.token_bucket_paused(
    b bigint[], left_ns bigint, now_ns bigint, token_ns bigint, window_ns bigint, ends_ns bigint
) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
begin
    b := pglimit.token_bucket_read(b, now_ns, token_ns, ends_ns);
    if ends_ns is null then
        b[1] := greatest(b[1], least(9223372036854775807, b[3]::numeric + left_ns + window_ns - token_ns));
    elsif left_ns > 0 and (b[1] - b[5] < window_ns or b[5] <= b[3] + left_ns) then
        b[5] := least(b[3] + left_ns, 9223372036854775807 - window_ns);
        b[1] := b[5] + window_ns;
    end if;
    return b;
end
$$;
-- +goose StatementEnd

-- Returns the seven numbers of token_bucket_take. b: the row after the call, as for token_bucket_read. granted: the
-- tokens that the call took. The decision is dated no earlier than the grants that it counts, unless the clock has
-- stepped back since. A bucket's row is told to a caller with a calendar as it means in that window.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_told(
    b bigint[], granted bigint, now_ns bigint, token_ns bigint, ends_ns bigint
) returns bigint[]
language sql immutable parallel safe
return array[case when b[3] > now_ns + pglimit.step_ns() then now_ns else greatest(now_ns, b[3]) end, granted] || case
    when b[3] > 0 and ends_ns is not null and (b[4] > 0 or b[5] = 0 or b[3] > now_ns + pglimit.window_step_ns())
        then pglimit.token_bucket_read(b, now_ns, token_ns, ends_ns)
    else b
end;

-- Returns whether this transaction may write. On a standby it may not: decisions can only deny there.
create or replace function pglimit.writable() returns boolean
language sql stable parallel safe return pg_catalog.current_setting('transaction_read_only') = 'off';

-- +goose StatementBegin
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
-- +goose StatementEnd

-- The longest window of a limit: some 203 years. With the time since 1970, it fits a bigint.
create or replace function pglimit.max_window_ns() returns bigint
language sql immutable parallel safe return 6400000000000000000;

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

-- +goose StatementBegin
-- Returns the buckets of a call for many, numbered from 1. limiters, tokens_ns, windows_ns, asks and ends_ns (null:
-- none has a calendar window) have an element for each key, or one for all. from_ns: the window's end, else now_ns,
-- see tokens_there.
--
-- A single select, so that the planner inlines it. It ends with "offset 0", so that it is read
-- once, in the order of the numbers. Join rows to it by "key = any (array[k.key]) and limiter between k.limiter and
-- k.limiter": that has no other plan than to look for one row after another, so locks are taken in that order.
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

-- +goose StatementBegin
-- Reads rows of token_bucket: five numbers each, as for token_bucket_read, and paused_ns (0: null). Zeros: there is none, or the key is null.
-- Locks nothing. _keys, _limiters: as for token_bucket_decide.
create or replace function pglimit.token_bucket_rows(_keys text[], _limiters text[]) returns bigint[]
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
begin
    return array(
        select array[coalesce(t.full_ns, 0), coalesce(t.token_ns, 0), coalesce(t.at_ns, 0), coalesce(t.leased_ns, 0),
            coalesce(t.until_ns, 0), coalesce(t.paused_ns, 0)]
        from pglimit.token_bucket_asked(_keys, _limiters, null, null, null, null) k
        left join pglimit.token_bucket t on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter);
end
$$;
-- +goose StatementEnd

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
-- buckets, each all or nothing, and if one is not granted, none is. (Null: each request is by itself.) What a group takes
-- ahead it uses when the last of it comes back: if a calendar window of the group has ended by then, none is granted.
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
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan as $$
declare
    n constant int := cardinality(_keys);
    now_ns bigint;
    ends_ns bigint[]; -- of the windows of the calendars
    -- Of each bucket:
    rows bigint[]; -- the row as it was seen, then as it is written: see token_bucket_rows
    pauses_ns bigint[]; -- for how long it is paused, or was, see token_bucket_paused; null: it is not
    fulls_ns bigint[]; -- when it is full again, with what is taken
    froms_ns bigint[]; -- see tokens_there
    rooms_ns bigint[]; -- the window, less what is leased
    granted bigint[]; -- tokens
    asked boolean[]; -- tokens are asked of it
    b bigint[];
    g int; -- group
    fallen boolean; -- a request of it cannot be granted
    due_ns bigint; -- when all is there that it takes ahead; null: it takes nothing ahead
    until_ns bigint; -- the first end of its calendar windows
    end_ns bigint;
    i int; -- bucket
    unit bigint;
    written boolean;
    complete boolean;
    said text;
begin
    _limiters := case cardinality(_limiters) when n then _limiters else array_fill(_limiters[1], array[n]) end;
    _tokens_ns := case cardinality(_tokens_ns) when n then _tokens_ns else array_fill(_tokens_ns[1], array[n]) end;
    _windows_ns := case cardinality(_windows_ns) when n then _windows_ns else array_fill(_windows_ns[1], array[n]) end;
    for try in case when sure then 1 else 2 end .. 2 loop
        rows := pglimit.token_bucket_rows(_keys, _limiters);
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_ends_ns(_calendars, now_ns);
        i := 1;
        foreach b slice 1 in array rows loop
            pauses_ns[i] := case when b[6] > b[3] then b[6] - greatest(b[3], now_ns) end;
            if pauses_ns[i] is not null then
                b := pglimit.token_bucket_paused(b, pauses_ns[i], now_ns, _tokens_ns[i], _windows_ns[i],
                    ends_ns[least(i, cardinality(ends_ns))]);
            else
                b := pglimit.token_bucket_read(b, now_ns, _tokens_ns[i], ends_ns[least(i, cardinality(ends_ns))]);
            end if;
            fulls_ns[i] := b[1];
            froms_ns[i] := case when b[4] = 0 and b[5] > 0 then b[5] else b[3] end;
            rooms_ns[i] := _windows_ns[i] - b[4];
            i := i + 1;
        end loop;
        grants := array_fill(0::bigint, array[cardinality(wants)]);
        granted := array_fill(0::bigint, array[n]);
        asked := array_fill(false, array[n]);
        g := 1;
        fallen := false;
        due_ns := null;
        until_ns := null;
        for j in 1 .. cardinality(wants) loop
            i := coalesce(members[j], j);
            continue when _keys[i] is null;
            unit := coalesce(units[j], greatest(1, wants[j]));
            -- A unit that is larger than the room would be used before leased tokens have come back.
            if unit <= rooms_ns[i] / _tokens_ns[i] then
                grants[j] := greatest(0, least(wants[j], pglimit.tokens_there(
                    fulls_ns[i], froms_ns[i], _tokens_ns[i], rooms_ns[i] + coalesce(aheads_ns[j], 0)))) / unit * unit;
            end if;
            asked[i] := asked[i] or wants[j] > 0;
            granted[i] := granted[i] + grants[j];
            fulls_ns[i] := fulls_ns[i] + grants[j] * _tokens_ns[i];
            continue when lasts is null;
            fallen := fallen or grants[j] = 0;
            if aheads_ns is not null then
                end_ns := ends_ns[least(i, cardinality(ends_ns))];
                until_ns := least(until_ns, end_ns);
                if end_ns is null and fulls_ns[i] - rooms_ns[i] > froms_ns[i] then
                    due_ns := greatest(due_ns, fulls_ns[i] - rooms_ns[i]);
                end if;
            end if;
            continue when j < lasts[g];
            -- A process waits a little longer, see AtMost in skew.go.
            fallen := fallen or coalesce(due_ns >= until_ns - (until_ns - now_ns) / 1024, false);
            for f in coalesce(lasts[g - 1], 0) + 1 .. case when fallen then j else 0 end loop
                i := coalesce(members[f], f);
                granted[i] := granted[i] - grants[f];
                fulls_ns[i] := fulls_ns[i] - grants[f] * _tokens_ns[i];
                grants[f] := 0;
            end loop;
            g := g + 1;
            fallen := false;
            due_ns := null;
            until_ns := null;
        end loop;
        complete := true;
        written := false;
        for i in 1 .. n loop
            continue when not asked[i];
            b := array[rows[i][1], rows[i][2], rows[i][3], rows[i][4], rows[i][5]];
            continue when granted[i] = 0 and not (pglimit.writable() and (pglimit.token_bucket_ahead(b, now_ns)
                or coalesce(pauses_ns[i] > 0 and b[3] > now_ns + pglimit.step_ns(), false)));
            if granted[i] > 0 or b[4] = 0 and b[5] > 0 and pglimit.token_bucket_ahead(b, now_ns) then
                b := pglimit.token_bucket_read(b, now_ns, _tokens_ns[i], ends_ns[least(i, cardinality(ends_ns))]);
                b[1] := case when granted[i] > 0 then fulls_ns[i] else b[1] end; -- a paused window reads otherwise
            else -- the clock has stepped back: a row keeps its price, or window
                b := pglimit.token_bucket_read(b, now_ns, b[2], case when b[4] = 0 and b[5] > 0 then b[5] end);
            end if;
            written := true;
            exit when try = 1;
            if rows[i][3] = 0 then
                insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_keys[i], _limiters[i], b[1], b[2], b[3], nullif(b[5], 0))
                on conflict do nothing;
            else
                update pglimit.token_bucket t
                set full_ns = b[1], token_ns = b[2], at_ns = b[3],
                    leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0), padding = null,
                    paused_ns = case when pauses_ns[i] > 0 then b[3] + pauses_ns[i] end
                where t.key = _keys[i] and t.limiter = _limiters[i] -- and it is as it was seen
                    and array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0),
                        coalesce(t.paused_ns, 0)]
                        = array[rows[i][1], rows[i][2], rows[i][3], rows[i][4], rows[i][5], rows[i][6]];
            end if;
            complete := complete and found;
            rows[i][1] := b[1]; rows[i][2] := b[2]; rows[i][3] := b[3]; rows[i][4] := b[4]; rows[i][5] := b[5];
        end loop;
        -- It may have waited; behind a lock it has not.
        exit when not written or try = 2 and (sure and complete or pglimit.in_time(now_ns, complete));
        for i in 1 .. n loop
            continue when not asked[i];
            said := pglimit.token_bucket_lock(_keys[i], _limiters[i], _tokens_ns[i]);
        end loop;
    end loop;
    buckets := array(
        select x || pglimit.token_bucket_told(case when pauses_ns[x] is not null and granted[x] = 0
                then pglimit.token_bucket_paused(r."row", pauses_ns[x], now_ns, _tokens_ns[x], _windows_ns[x], e.ends_ns)
                else r."row" end, granted[x], now_ns, _tokens_ns[x], e.ends_ns)
        from generate_series(1, n) x
        cross join lateral (select array[rows[x][1], rows[x][2], rows[x][3], rows[x][4], rows[x][5]] as "row") r
        cross join lateral (select ends_ns[least(x, cardinality(ends_ns))] as ends_ns) e
        where _keys[x] is not null);
end
$$;
-- +goose StatementEnd

-- Returns true if these can be parameters of token_bucket_take. A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_valid_one(
    key text, limiter text, token_ns bigint, window_ns bigint, want bigint, unit bigint
) returns boolean
language sql immutable parallel safe
return key is not null and limiter is not null and window_ns <= pglimit.max_window_ns()
    and token_ns > 0 and unit between 1 and window_ns / nullif(token_ns, 0) and (want = 0 or unit <= want);

-- Sets lock_timeout to patience (null: not), and synchronous_commit to off if relaxed, until the transaction ends.
--
-- A single expression, so that the planner inlines it. Assign it to something: "perform" is a query of its own.
create or replace function pglimit.transaction_settings(patience text, relaxed boolean) returns text
language sql volatile
return concat(
    case when patience is not null then set_config('lock_timeout', patience, true) end,
    case when relaxed then set_config('synchronous_commit', 'off', true) end);

-- +goose StatementBegin
-- Takes want tokens from one bucket, in whole multiples of unit (all or nothing, if the two are equal).
--
-- True of every take, of one bucket or of many:
--
--   - A grant locks the rows of its buckets until the transaction ends, or inserts them. A denial locks no row,
--     unless another call changed the row while this one waited, or there is something to write: denials that are
--     counted, and, once, a row that was written before the clock stepped back. (With sure, see token_bucket_decide.)
--   - A grant is decided by the row behind its lock, a denial by a plain read and the clock behind that. It may deny by
--     a row that is being changed: a take can only leave less, and what comes back counts from its commit on.
--   - One call locks several buckets in the bytewise order of key and limiter, or waits for a millisecond only: see
--     token_bucket_take_many. A transaction of several calls must keep to an order by itself.
--   - What a row means to a call with another price, or after the clock stepped back: see token_bucket_read.
--
-- 1. The usual case is one update: of a row with the same price, no lease, no pause, and enough for all. A row that does not
--    have enough is not locked. If another call has changed the row while this one waited for it, Postgres checks it
--    again.
-- 2. A look may show that there is no row, which is inserted; that tokens are lacking, which is a denial; or that there
--    are some: these are taken if the row is still as it was seen.
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
-- True of all functions of token_bucket: what reads before it writes first takes the table's lock that a write takes, because
-- a read that becomes a write can deadlock with REINDEX. Without enable_seqscan = off, a session would keep a plan that
-- was made while the table was small. Here set_config is assigned to something: "perform" is a query of its own.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text,
    _calendar text default null, relaxed boolean default false, ahead_ns bigint default 0
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint := pglimit.window_end_ns(_calendar, now_ns);
    from_ns bigint := coalesce(ends_ns, now_ns); -- see tokens_there
    writable constant boolean := pglimit.writable();
    seen bigint[];
    there bigint; -- tokens, in whole units
    owed_ns bigint; -- when the bucket is full again
    taken bigint[];
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    -- The planner multiplies want and the price before any row is read, so the product must fit a bigint.
    if writable and ahead_ns = 0 and unit between 1 and want and want % unit = 0
        and want <= _window_ns / nullif(_token_ns, 0) and _window_ns <= pglimit.max_window_ns() then
        update pglimit.token_bucket t
        set full_ns = greatest(t.full_ns, t.at_ns, from_ns) + want * _token_ns, at_ns = greatest(t.at_ns, now_ns),
            padding = null
        where t.key = _key and t.limiter = _limiter
            and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
            and want <= pglimit.tokens_there(t.full_ns, greatest(t.at_ns, from_ns), _token_ns, _window_ns)
            and t.at_ns <= now_ns + pglimit.step_ns() and coalesce(t.paused_ns, 0) <= t.at_ns
            -- Checked again after a wait:
            and pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns()
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
    elsif writable and want > 0 then
        lock table pglimit.token_bucket in row exclusive mode; -- before the read
    end if;
    if taken is null and ahead_ns = 0 then
        select array[t.full_ns, t.token_ns, t.at_ns, t.until_ns, t.paused_ns] into seen
        from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := pglimit.window_end_ns(_calendar, now_ns); -- again: the clock may have stepped back
        from_ns := coalesce(ends_ns, now_ns);
        there := case
            when seen is null then _window_ns / nullif(_token_ns, 0)
            when seen[2] = _token_ns and seen[4] is not distinct from ends_ns and seen[3] <= now_ns + pglimit.step_ns()
                and coalesce(seen[5], 0) <= seen[3]
                then pglimit.tokens_there(seen[1], greatest(seen[3], from_ns), _token_ns, _window_ns)
        end;
        if _key is not null and _limiter is not null and _token_ns > 0 and there is not null
            and unit between 1 and _window_ns / nullif(_token_ns, 0) and unit <= want
            and _window_ns <= pglimit.max_window_ns() then
            there := greatest(0, least(want, there)) / unit * unit;
            if there = 0 then
                return array[greatest(seen[3], now_ns), 0, seen[1], _token_ns, seen[3], 0, coalesce(ends_ns, 0)];
            elsif seen is null then
                insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_key, _limiter, from_ns + there * _token_ns, _token_ns, now_ns, ends_ns)
                on conflict do nothing
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
            else -- as many as there are, if nobody has changed the row since the look
                update pglimit.token_bucket t
                set full_ns = greatest(t.full_ns, t.at_ns, from_ns) + there * _token_ns,
                    at_ns = greatest(t.at_ns, now_ns), padding = null
                where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns
                    and t.until_ns is not distinct from ends_ns and t.full_ns = seen[1] and t.at_ns = seen[3]
                    and coalesce(t.paused_ns, 0) <= t.at_ns
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
            end if;
        end if;
    end if;
    if taken is null then
        if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, unit)
            and ahead_ns between 0 and pglimit.max_window_ns()) is not true then
            raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %, ahead_ns %',
                want, unit, _token_ns, _window_ns, ahead_ns using errcode = 'invalid_parameter_value';
        end if;
        seen := (pglimit.token_bucket_decide(array[_key], array[_limiter], array[_token_ns], array[_window_ns],
            null, array[want], array[unit], array[ahead_ns], null, true,
            case when _calendar is not null then array[_calendar] end)).buckets;
        taken := array[seen[1][2], seen[1][3], seen[1][4], seen[1][5], seen[1][6], seen[1][7], seen[1][8]];
    elsif pglimit.clock_ns() > taken[1] + pglimit.step_ns() then
        -- The write has waited, so it is dated too early. Behind the lock
        -- it is dated as of now, in the calendar window of now, and gets what has come back since of what it lacks.
        now_ns := pglimit.clock_ns();
        ends_ns := pglimit.window_end_ns(_calendar, now_ns);
        from_ns := coalesce(ends_ns, now_ns);
        owed_ns := from_ns + taken[2] * _token_ns;
        if taken[7] = coalesce(ends_ns, 0) then
            owed_ns := greatest(owed_ns, taken[3]);
        end if;
        there := greatest(0, least(want - taken[2],
            pglimit.tokens_there(owed_ns, from_ns, _token_ns, _window_ns))) / unit * unit;
        owed_ns := owed_ns + there * _token_ns;
        update pglimit.token_bucket t set full_ns = owed_ns, at_ns = now_ns, until_ns = ends_ns
        where t.key = _key and t.limiter = _limiter
        returning array[t.at_ns, taken[2] + there, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
    end if;
    return taken;
end
$$;
-- +goose StatementEnd

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
    if pglimit.writable() then
        lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, unit, _calendar);
    for look in 1 .. 2 loop
        select t.until_ns, t.at_ns into block
        from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
        -- one date for the bucket and the block
        now_ns := case when taken[2] = 0 then taken[1] else pglimit.clock_ns() end;
        blocked_ns := pglimit.token_bucket_blocked_ns(block.until_ns, block.at_ns, now_ns);
        if blocked_ns > 0 then
            if block.at_ns > now_ns + pglimit.step_ns() and pglimit.writable() then
                block := pglimit.token_bucket_count_denial(_key, _limiter, null); -- moves the block
            end if;
            if taken[2] is null then
                taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, unit, _calendar);
            end if;
            taken[1] := now_ns;
            taken[2] := 0;
            return;
        end if;
        exit when look = 2 or taken[2] = 0;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    if taken[2] is null then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, unit, null, _calendar);
    end if;
    if taken[2] = 0 and rule <> '{}' and not exists ( -- denials of a pause do not count
        select from pglimit.token_bucket t
        where t.key = _key and t.limiter = _limiter and t.paused_ns > greatest(t.at_ns, taken[1])) then
        block := pglimit.token_bucket_count_denial(_key, _limiter, rule);
        blocked_ns := block.blocked_ns;
        taken[1] := case when blocked_ns > 0 then block.now_ns else taken[1] end;
    end if;
end
$$;
-- +goose StatementEnd

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
-- transaction that takes from several keys must name them in one order, as every other does.) A denial locks no row and
-- writes nothing, unless another call took the tokens meanwhile, or, once, the clock has stepped back since the key's
-- last write; or a rule that is only observed takes from its own bucket beside it. Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it. retry_after: the
-- time from "at" until n tokens are there, if nobody takes any, and the key is not blocked. reset_after: until the
-- bucket is full. "at": the database's clock at the decision. observed: what a rule of the table that is only observed
-- would have allowed; null: there is none, or a rule decides without a limit. Fails with SQLSTATE 22023, and has taken nothing, if limiter, key
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

-- +goose StatementBegin
-- Returns the burst of a limit in the table pglimit.limits, and the price of a token in nanoseconds: null for a limit
-- per calendar window. For views: it never fails, as request_ns does, but returns nulls for what cannot be a limit.
create or replace function pglimit.limit_numbers(limit_text text, out burst bigint, out token_ns bigint)
language plpgsql immutable strict parallel safe set search_path = '' as $$
declare
    words constant text[] := array_remove(string_to_array(limit_text, ' '), '');
    tokens constant bigint := nullif(pglimit.whole_number(split_part(words[1], '/', 1)), 0);
    period constant text := split_part(words[1], '/', 2);
    is_window constant boolean := coalesce(words[2] <> 'burst', false) or period ~ '^1?(month|year)$';
begin
    burst := case when 'burst' = any (words) then pglimit.whole_number(words[array_position(words, 'burst') + 1]) else tokens end;
    token_ns := case when not is_window then (pglimit.period_ns_of(period) - 1) / tokens + 1 end;
    if tokens is null or token_ns is null and not is_window or burst::numeric * coalesce(token_ns, 1) > pglimit.max_window_ns() then
        burst := null;
        token_ns := null;
    end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns which of the prefixes, the longest of which is the first, the key begins with first. Null: with none.
create or replace function pglimit.longest_prefix(key text, prefixes text[]) returns int
language plpgsql immutable strict parallel safe set search_path = '' as $$
begin
    for n in 1 .. cardinality(prefixes) loop
        if starts_with(key, prefixes[n]) then
            return n;
        end if;
    end loop;
    return null;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns how many tokens a bucket has by a limit, as pglimit.peek says. b: as for token_bucket_read. burst and token_ns
-- are those of limit_numbers: without token_ns, nothing comes back before the end of the window, whenever that is.
create or replace function pglimit.tokens_left(b bigint[], now_ns bigint, burst bigint, token_ns bigint) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    is_window constant boolean := token_ns is null;
    price constant bigint := coalesce(token_ns, 1);
    now constant bigint[] := pglimit.token_bucket_read(b, now_ns, price, case when is_window then now_ns + 1 end);
begin
    return greatest(0, pglimit.tokens_there(now[1], now[case when is_window then 5 else 3 end], price,
        greatest(0, burst * price - now[4])));
end
$$;
-- +goose StatementEnd

-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';
-- A bucket of a calendar window has no seconds_per_token: all that was taken comes back at full_at.
-- burst and tokens_left are by the rule of pglimit.limits that decides for the key now. Null: none has a limit for it.
-- Each join finds one row at most, so that the planner drops it where neither of these columns is asked for.
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.buckets as
with live as not materialized (
    select l.limiter, l.key, coalesce(l.prefix, '') as prefix, l.temporary, n.burst, n.token_ns
    from pglimit.limits l cross join lateral pglimit.limit_numbers(l.limit_text) n
    where l.kind = 'live' and l.enabled and (l.expires_at > statement_timestamp()) is not false
        and not exists (
            select from pglimit.limits o
            where o.kind = 'off' and o.enabled and (o.expires_at > statement_timestamp()) is not false
                and coalesce(o.limiter, l.limiter) = l.limiter)
)
select
    b.strategy, b.limiter, b.key,
    case when b.in_window then case when b.until_ns > b.now_ns then (b.full_ns - b.until_ns)::bigint else 0 end
        else least(9223372036854775807, ceil(greatest(0, b.full_ns - greatest(b.now_ns, b.ahead_ns)) / b.token_ns))::bigint
    end as tokens_owed,
    ceil(b.leased_ns / b.token_ns)::bigint as tokens_leased,
    case when not b.in_window then trim_scale(b.token_ns / 1000000000.0) end as seconds_per_token,
    to_timestamp(b.at_ns / 1000000000.0) as last_taken_at,
    to_timestamp((case when b.in_window then b.until_ns when b.leased_ns > 0 then greatest(b.full_ns, b.until_ns) + b.leased_ns else b.full_ns end - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) as full_at,
    case when b.paused_ns > greatest(b.now_ns, b.at_ns)
        then to_timestamp((b.paused_ns - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) end as paused_until,
    b.burst,
    case
        when b.burst is null then null
        when b.paused_ns > greatest(b.now_ns, b.at_ns) then 0
        when b.paused_ns > b.at_ns and b.live_ns is not null then pglimit.tokens_left(
            pglimit.token_bucket_paused(b.row, b.paused_ns - b.now_ns, b.now_ns, b.live_ns, b.burst * b.live_ns, null),
            b.now_ns, b.burst, b.live_ns)
        when b.token_ns = b.live_ns and b.until_ns is null and b.ahead_ns = 0 -- as a rule, and faster
            then greatest(0, pglimit.tokens_there(b.full_ns::bigint, b.now_ns, b.token_ns, b.burst * b.token_ns))
        else pglimit.tokens_left(b.row, b.now_ns, b.burst, b.live_ns)
    end as tokens_left
from (
    select strategy, t.key, t.limiter, t.token_ns, at_ns, until_ns, paused_ns, now_ns, leased_ns is null and until_ns is not null as in_window,
        case when leased_ns > 0 and until_ns <= now_ns then greatest(full_ns, until_ns)::numeric + leased_ns else full_ns end as full_ns,
        case when leased_ns > 0 and until_ns > now_ns then leased_ns::numeric else 0 end as leased_ns,
        case when at_ns > now_ns + pglimit.step_ns() then at_ns else 0 end as ahead_ns,
        array[full_ns, t.token_ns, at_ns, coalesce(leased_ns, 0), coalesce(until_ns, 0)] as row,
        case when own.key is not null then own.burst else shared.bursts[case when shared.prefixes[1] <> '' then pglimit.longest_prefix(t.key, shared.prefixes) else 1 end] end as burst,
        case when own.key is not null then own.token_ns else shared.tokens_ns[case when shared.prefixes[1] <> '' then pglimit.longest_prefix(t.key, shared.prefixes) else 1 end] end as live_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    cross join (
        select 'token_bucket' as strategy, key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns, paused_ns from pglimit.token_bucket
        union all
        select 'upsert', key, limiter, full_ns, token_ns, at_ns, null, null, null from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, full_ns, token_ns, at_ns, null, null, null from pglimit.for_update_nowait
    ) t
    left join (
        select limiter, key,
            (array_agg(burst order by temporary desc))[1] as burst, (array_agg(token_ns order by temporary desc))[1] as token_ns
        from live where key is not null group by limiter, key
    ) own on own.limiter = t.limiter and own.key = t.key
    left join (
        select limiter, array_agg(prefix order by length(prefix) desc, temporary desc) as prefixes,
            array_agg(burst order by length(prefix) desc, temporary desc) as bursts,
            array_agg(token_ns order by length(prefix) desc, temporary desc) as tokens_ns
        from live where key is null group by limiter
    ) shared on shared.limiter = t.limiter
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';

-- +goose StatementBegin
-- Returns the rule that delete_limit and enable_limit are about: the temporary one, until it expires, else the
-- permanent one. Null: none. Waits for other changes of limits, until they commit. Fails with SQLSTATE 22023 without a
-- note, or if kind is none.
create or replace function pglimit.limit_on_top(limiter text, key text, prefix text, kind text, note text)
returns bigint
language plpgsql set search_path = '' set row_security = off as $$
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif (kind in ('live', 'observe', 'off', 'places')) is not true then
        raise exception 'pglimit: kind is %: it must be live, observe, off or places', coalesce(kind, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- its trigger waits
    return (
        select l.id from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind] = array[$1, $2, $3, $4]
        order by (l.expires_at > clock_timestamp()) is true desc, l.temporary limit 1);
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Removes a rule, and returns the row that it was, or null: the temporary one, until it expires, else the permanent
-- one; of the kind off both. kind: live, observe, off or places. note: why. by: as for set_limit.
create or replace function pglimit.delete_limit(
    limiter text, key text default null, prefix text default null, kind text default 'live',
    note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top constant bigint := pglimit.limit_on_top(limiter, key, prefix, kind, note);
    removed jsonb;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
    _note constant text := coalesce(current_setting('pglimit.note', true), '');
begin
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', note, true);
    delete from pglimit.limits l where l.id = top returning to_jsonb(l) into removed;
    if removed ->> 'kind' = 'off' then -- what is switched on is on
        delete from pglimit.limits l where l.limiter is not distinct from delete_limit.limiter and l.kind = 'off';
    end if;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return removed;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Enables a rule, or disables it, and returns the row that it was, or null: the temporary one, until it expires, else
-- the permanent one. A rule that is so already is left alone. Parameters are as for delete_limit.
create or replace function pglimit.enable_limit(
    limiter text, enabled boolean, key text default null, prefix text default null, kind text default 'live',
    note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top constant bigint := pglimit.limit_on_top(limiter, key, prefix, kind, note);
    was constant jsonb := (select to_jsonb(l) from pglimit.limits l where l.id = top);
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    perform set_config('pglimit.by', coalesce(by, _by), true);
    update pglimit.limits l set (enabled, note) = (enable_limit.enabled, enable_limit.note)
    where l.id = top and l.enabled is distinct from enable_limit.enabled;
    perform set_config('pglimit.by', _by, true);
    return was;
end
$$;
-- +goose StatementEnd

-- The permits that are held now, for a person in psql.
create or replace view pglimit.holders as
select p.limiter, p.key, h.holder, h.weight, h.token,
    pglimit.time_of(h.since_ns - p.step_ns) as since, pglimit.time_of(h.until_ns - p.step_ns) as expires_at
from (
    select p.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.permits p
) p
cross join unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns) h (holder, token, weight, since_ns, until_ns)
where h.until_ns - p.step_ns > p.now_ns;

-- +goose StatementBegin
-- Looks at a bucket and at the block of its key. Locks nothing. The parameters: as for token_bucket_take.
--
-- taken: the seven numbers of token_bucket_take, of which none were granted. blocked_ns: for how long the key is
-- blocked (0: it is not).
create or replace function pglimit.token_bucket_look(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, _calendar text default null, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
begin
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, null, _calendar);
    taken[2] := 0;
    blocked_ns := coalesce((
        select pglimit.token_bucket_blocked_ns(t.until_ns, t.at_ns, taken[1])
        from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter), 0);
end
$$;
-- +goose StatementEnd

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
    looked := pglimit.token_bucket_look(_key, _limiter, asked.token_ns, asked.window_ns, asked.calendar);
    select d.remaining >= n and looked.blocked_ns = 0, d.granted, d.remaining, d.retry_after, d.reset_after, d.at
    into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(looked.taken, looked.blocked_ns, n, asked.token_ns, asked.window_ns, asked.calendar) d;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns the rules for a key, in the order in which they are looked at, and the state of each: it holds, or is
-- overruled by one that does, disabled or expired; or it fails: it would hold, but cannot be read or kept (why says
-- what is wrong), and each request gets an error. For one with a limit that holds, also what is left in the bucket (as
-- pglimit.peek says, of the strategy token_bucket), or, of the kind places, how many are held. Counts nothing. If none
-- holds that is live or off, the limit in the service's configuration does.
create or replace function pglimit.explain_limit(limiter text, key text) returns table (
    state text, rule pglimit.limits, remaining bigint, retry_after interval, reset_after interval, held bigint, why text
)
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    held_kinds text[] := '{}';
begin
    for rule in
        select l.* from pglimit.limits_for(explain_limit.limiter, explain_limit.key) l
        order by array_position(array['off', 'live', 'observe', 'places'], l.kind),
            l.limiter nulls first, l.key, length(l.prefix) desc nulls last, l.temporary desc
    loop
        remaining := null; retry_after := null; reset_after := null; held := null; why := null;
        state := case
            when not rule.enabled then 'disabled'
            when rule.expires_at <= clock_timestamp() then 'expired'
            when rule.kind = any (held_kinds) or rule.kind = 'live' and 'off' = any (held_kinds) then 'overruled'
            else 'holds'
        end;
        if state = 'holds' then
            held_kinds := held_kinds || rule.kind;
            if rule.kind = 'places' then
                held := (
                    select coalesce(sum(h.weight), 0) from pglimit.holders h
                    where h.limiter = rule.limiter and h.key = explain_limit.key);
            elsif rule.limit_text is not null then
                begin
                    select p.remaining, p.retry_after, p.reset_after into remaining, retry_after, reset_after
                    from pglimit.peek(concat(rule.limiter, case rule.kind when 'observe' then ' (observed)' end),
                        explain_limit.key, rule.limit_text) p;
                exception when invalid_parameter_value then
                    state := 'fails';
                    why := regexp_replace(sqlerrm, '^pglimit: ', '');
                end;
            end if;
        end if;
        return next;
    end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Says that instances live: ids[i] runs limiters[i] and follows its rules. An instance calls it every ten seconds. Its
-- row is live for 30 seconds after that, for pglimit.limit_followers. Then it waits for nobody, and returns null.
--
-- Where it counts the others too, FailLocal can take its share of the limit while Postgres does not answer. Then it
-- calls every second, and its row is live for five seconds after that. heard: the turn of the answer to its last call;
-- 0: it has not heard it. Returns {"turn": n, "instances": {"id": [live instances of its limiter, whether it is
-- counted], …}}. Locks the row of instances_turn until the commit, which does not wait for the disk.
--
-- An instance that is counted takes 1 / instances of the limit, by the last answer that it heard. Together that is
-- never more than the limit:
--
--   - Calls have turns, in the order of that lock. So a call sees the row of each instance that called before.
--   - A new instance is counted when each older one has said that it heard an answer that was given after the new one
--     came. So the last answer that an instance heard has all others who are counted.
--   - The next call of another instance deletes a row that is no longer live. Then its instance is new when it calls
--     again.
--   - Time in which nobody calls hardly counts: the first call after an outage, or after a step of the clock to either
--     side, moves the rows of the limiter by it. So an outage, however long, makes no instance new.
--
-- What remains: an instance that is cut off alone for longer than five seconds has its share on top, until it is heard
-- of again.
create or replace function pglimit.instance_lives(
    limiters text[], ids text[], heard bigint, counts boolean default true
) returns text
language plpgsql set search_path = '' set row_security = off set jit = off as $$
#variable_conflict use_column
declare
    follows_ns constant bigint := 30000000000;
    live_ns constant bigint := 5000000000;
    usual_ns constant bigint := 1000000000; -- between two calls
    day_ns constant bigint := 86400000000000; -- after that the row of a process that crashed goes
    now_ns bigint;
    this_turn bigint;
begin
    if not instance_lives.counts then
        perform set_config('synchronous_commit', 'off', true);
        now_ns := pglimit.clock_ns();
        delete from pglimit.instances i where (i.limiter, i.id) in ( -- not rows that another call deletes now
            select o.limiter, o.id from pglimit.instances o where o.until_ns < now_ns - day_ns for update skip locked);
        insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
        select l.limiter, l.id, false, 0, 0, 0, now_ns + follows_ns from unnest(limiters, ids) l (limiter, id)
        on conflict (limiter, id) do update set until_ns = excluded.until_ns;
        return null;
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'pglimit: instances cannot be counted in a transaction that is %',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported',
            hint = 'It does not see those that called just before. '
                'Set default_transaction_isolation of the role to ''read committed''.';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pglimit.instances_turn as t (turn) values (1)
    on conflict (one) do update set turn = t.turn + 1 returning t.turn into this_turn;
    now_ns := pglimit.clock_ns(); -- behind the lock
    update pglimit.instances i set until_ns = greatest(1, i.until_ns + l.idle_ns - usual_ns)
    from (
        select o.limiter, now_ns - max(o.until_ns) + live_ns as idle_ns
        from pglimit.instances o where o.limiter = any (limiters) and o.counts group by o.limiter
    ) l
    where l.limiter = i.limiter and i.counts and (l.idle_ns > live_ns / 2 or l.idle_ns < -pglimit.step_ns());
    insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
    select l.limiter, l.id, true, this_turn, 0, this_turn, now_ns + live_ns from unnest(limiters, ids) l (limiter, id)
    on conflict (limiter, id) do update
    set heard = case when instance_lives.heard = i.turn then i.turn else i.heard end,
        turn = excluded.turn, until_ns = excluded.until_ns;
    delete from pglimit.instances i
    where i.until_ns <= now_ns and i.limiter = any (limiters) or i.until_ns < now_ns - day_ns;
    return jsonb_build_object('turn', this_turn, 'instances', (
        select jsonb_object_agg(i.id, jsonb_build_array(
            (select count(*) from pglimit.instances o where o.limiter = i.limiter and o.counts),
            not exists (select from pglimit.instances o
                where o.limiter = i.limiter and o.counts and o.joined < i.joined and o.heard <= i.joined)))
        from unnest(limiters, ids) l (limiter, id) join pglimit.instances i on i.limiter = l.limiter and i.id = l.id
    ));
end
$$;
-- +goose StatementEnd

-- Returns why a plain statement changes limits.
create or replace function pglimit.limit_reason() returns text
language sql stable
return case when current_setting('pglimit.note', true) ~ '[^[:space:]]' then current_setting('pglimit.note', true)
    else '(no reason given)' end;

-- +goose StatementBegin
-- The trigger of statements that change limits, which wait for each other, until the commit; and of the rows that they
-- change, whose history it writes. It acts as the owner, and so for this table only: everybody may call it for a table
-- of their own. (The name is compared as text, because a type named here could be one of the caller's temporary
-- schema.)
create or replace function pglimit.limit_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    of pglimit.limits;
    last bigint;
    next bigint;
begin
    if tg_table_schema <> 'pglimit' or tg_table_name <> 'limits' then
        raise exception 'pglimit: this is a trigger of pglimit.limits only' using errcode = 'insufficient_privilege';
    elsif tg_op = 'TRUNCATE' then
        raise exception 'pglimit: truncate leaves no history' using errcode = 'object_not_in_prerequisite_state',
            hint = 'Use: delete from pglimit.limits';
    elsif tg_level = 'STATEMENT' then
        lock table pglimit.limits_history in share row exclusive mode;
        return null;
    end if;
    of := case when tg_op = 'DELETE' then old else new end;
    last := coalesce((select max(h.id) from pglimit.limits_history h), 0);
    next := nextval('pglimit.limits_history_id_seq');
    if next <= last then -- logical replication brought the rows and not the sequence
        next := setval('pglimit.limits_history_id_seq', last + 1);
    end if;
    insert into pglimit.limits_history (id, at, role, by, note, limiter, key, prefix, before, after)
    overriding system value values (
        next, clock_timestamp(), session_user, coalesce(nullif(current_setting('pglimit.by', true), ''), session_user),
        case when tg_op = 'DELETE' then pglimit.limit_reason() else of.note end, of.limiter, of.key, of.prefix,
        case when tg_op <> 'INSERT' then to_jsonb(old) end, case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end
$$;
create or replace trigger limits_change before insert or update or delete or truncate on pglimit.limits
    for each statement execute function pglimit.limit_changed();
create or replace trigger limit_changed after insert or update or delete on pglimit.limits
    for each row execute function pglimit.limit_changed();
-- +goose StatementEnd

-- +goose StatementBegin
-- The trigger of a rule before it is written: it checks names, limit_text and max_wait, and fills in who changed the
-- rule and when. For an update that sets the note, it is called twice, first with an argument: then changed_at tells
-- the second call that the note is of this change, even if it reads as before.
create or replace function pglimit.limit_changes() returns trigger
language plpgsql set search_path = '' as $$
begin
    if tg_nargs > 0 then
        new.changed_at := 'infinity';
        return new;
    elsif tg_op = 'UPDATE'
        and (new.limiter, new.key, new.prefix) is distinct from (old.limiter, old.key, old.prefix) then
        raise exception 'pglimit: limiter, key and prefix of a rule cannot change: its history would miss it'
            using errcode = 'object_not_in_prerequisite_state', hint = 'Insert another rule, and delete this one';
    elsif tg_op = 'UPDATE' and new.changed_at <> 'infinity' then
        new.note := pglimit.limit_reason(); -- the former one was for another change
    end if;
    if tg_op = 'INSERT' or new.enabled and not old.enabled -- a rule that is none any more can be disabled
        or (new.action, new.limit_text, new.max_wait) is distinct from (old.action, old.limit_text, old.max_wait) then
        perform pglimit.window_end_ns(r.calendar, pglimit.clock_ns()) -- fails for a time zone that is none
        from pglimit.request_ns(coalesce(new.limiter, 'all'), coalesce(new.key, 'all'),
            coalesce(case when new.action <> 'places' then new.limit_text end, '1/s'), 1, null, null, null) r;
        if new.max_wait is not null and (new.action = 'enforce' and (new.max_wait ~ '^[1-9][0-9]{0,5}%$'
                or pglimit.period_ns_of(new.max_wait) between 1 and 200 * 365 * 86400000000000)) is not true then
            raise exception 'pglimit: %', 'the longest wait is a period such as 30s or a share of the limit''s '
                'such as 50%, and goes with the action enforce' using errcode = 'invalid_parameter_value';
        end if;
    end if;
    new.changed_by := coalesce(nullif(current_setting('pglimit.by', true), ''), session_user);
    new.changed_at := clock_timestamp();
    return new;
end
$$;
create or replace trigger limit_a_note_changes before update of note on pglimit.limits -- the first, by its name
    for each row execute function pglimit.limit_changes('note');
create or replace trigger limit_changes before insert or update on pglimit.limits
    for each row execute function pglimit.limit_changes();
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns how many follow the rules of a limiter (null: of any) within two seconds. instances: live ones. servers: live
-- instances of "pglimit serve", which decide for each limiter of the table and have the name "(table)". known: the
-- names of all limiters that have a live instance, or a rule.
create or replace function pglimit.limit_followers(
    limiter text, out instances bigint, out servers bigint, out known text[]
)
language sql stable set search_path = '' as $$
    select count(l.id) filter (where l.limiter <> '(table)' and ($1 is null or l.limiter = $1)),
        count(l.id) filter (where l.limiter = '(table)'),
        coalesce(array_agg(distinct l.limiter) filter (where l.limiter <> '(table)'), '{}')
    from (
        select i.limiter, i.id from pglimit.instances i where i.until_ns > pglimit.clock_ns()
        union all select r.limiter, null from pglimit.limits r where r.limiter is not null and r.kind <> 'places'
    ) l
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns the last changes, the latest first: of all limits, of those of a limiter, or of the rules of it that are for
-- a key. Null: any.
create or replace function pglimit.limit_history(
    limiter text default null, key text default null, last bigint default null
) returns setof pglimit.limits_history
language sql stable set search_path = '' set row_security = off set jit = off as $$
    select h.* from pglimit.limits_history h
    where ($1 is null or h.limiter = $1 or h.limiter is null)
        and ($2 is null or h.key = $2 or h.key is null and starts_with($2, coalesce(h.prefix, '')))
    order by h.id desc limit $3
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns for how many known buckets, of whatever strategy, a rule for these keys would hold: not those of keys that
-- have a rule of that kind for themselves or for a longer prefix. A null limiter: of all limiters. Of the kind places:
-- how many known keys of the semaphore. Reads the tables of the buckets.
create or replace function pglimit.limit_reaches(
    limiter text, key text default null, prefix text default null, kind text default 'live'
) returns bigint
language plpgsql stable set search_path = '' set row_security = off set jit = off as $$
declare
    view text;
    n bigint;
    reached bigint := 0;
begin
    foreach view in array case kind when 'places' then '{permits}' else '{buckets,ranges}' end::text[] loop
        continue when to_regclass('pglimit.' || view) is null; -- exclusion_range is not migrated
        execute format('
            with b as materialized (
                select b.limiter, b.key from pglimit.%I b
                where ($1 is null or b.limiter = $1) and ($2 is null or b.key = $2)
                    and ($3 is null or starts_with(b.key, $3))
            )
            select count(*) from b
            where $2 is not null or not exists (
                select from pglimit.limits l
                where l.limiter = b.limiter and l.kind = $4
                    and l.enabled and (l.expires_at > clock_timestamp()) is not false
                    and (l.key = b.key or length(l.prefix) > coalesce(length($3), 0) and starts_with(b.key, l.prefix))
            )', view) into n using limiter, key, prefix, kind;
        reached := reached + n;
    end loop;
    return reached;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Returns all rules for limiters that hold now, and their version, as of one snapshot: a service reads it every second.
-- known: the stamp of its last answer. Without the rules, if they are still those. "now" is the database's clock.
create or replace function pglimit.limits_since(known text) returns text
language plpgsql stable set search_path = '' set row_security = off set jit = off as $$
declare
    now constant timestamptz := clock_timestamp();
    last record;
    stamp text;
begin
    select max(h.id) as id, max(h.at) as at into last
    from (select h.id, h.at from pglimit.limits_history h order by h.id desc limit 1) h;
    stamp := jsonb_build_array(last.id, extract(epoch from last.at), ( -- what is on ends by itself
        select extract(epoch from max(l.expires_at)) from pglimit.limits l where l.enabled and l.expires_at <= now
    ));
    if stamp = known then
        return json_build_object('stamp', stamp, 'now', extract(epoch from now));
    end if;
    return json_build_object('stamp', stamp, 'version', coalesce(last.id, 0), 'now', extract(epoch from now), 'rules', (
        select coalesce(json_agg(json_build_object(
            'id', l.id, 'limiter', l.limiter, 'key', l.key, 'prefix', l.prefix, 'action', l.action,
            'limit', l.limit_text, 'max_wait', l.max_wait, 'note', l.note,
            'expires', extract(epoch from l.expires_at))), '[]')
        from pglimit.limits l where l.enabled and (l.expires_at > now) is not false and l.kind <> 'places'
    ));
end
$$;
-- +goose StatementEnd

-- The time in nanoseconds since 1970.
create or replace function pglimit.ns_of("time" timestamptz) returns bigint
language sql immutable parallel safe return (extract(epoch from "time") * 1000000)::bigint * 1000;

-- +goose StatementBegin
-- Lets nobody take tokens of a bucket for as long as for_ns (ten years at most) from now on, whatever limit he has:
-- see token_bucket_paused. What was used stays used. A pause that lasts longer stays as it is; pglimit.reset ends it.
-- What was taken before and is due in the pause stays taken: who waits for it looks whether there is a pause when it is
-- due, gives it back, and takes again.
--
-- Waits for any call that holds the row, locks it (inserts it if it is missing), and only then reads the clock.
-- relaxed: as for token_bucket_take. Returns for how long, in nanoseconds, others may still grant out of their leases
-- (0: there are none).
create or replace function pglimit.token_bucket_pause(
    _key text, _limiter text, for_ns bigint, relaxed boolean default false
) returns bigint
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    seen bigint[]; -- the row, as of token_bucket_rows
    b bigint[];
    now_ns bigint;
    said text;
begin
    if (_key is not null and _limiter is not null and for_ns between 1 and 3650 * 86400000000000) is not true then
        raise exception 'token_bucket_pause: for_ns %', for_ns using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    said := pglimit.token_bucket_lock(_key, _limiter, 1);
    seen := array(select unnest(pglimit.token_bucket_rows(array[_key], array[_limiter])));
    now_ns := pglimit.clock_ns();
    for_ns := greatest(for_ns, seen[6] - greatest(seen[3], now_ns));
    -- As of now, at its own price, or of its own window.
    b := pglimit.token_bucket_read(seen, now_ns, seen[2], case when seen[4] = 0 and seen[5] > 0 then seen[5] end);
    update pglimit.token_bucket t
    set full_ns = b[1], at_ns = b[3], leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0), padding = null,
        paused_ns = b[3] + for_ns
    where t.key = _key and t.limiter = _limiter;
    return case when seen[4] > 0 then greatest(0, seen[5] - greatest(seen[3], now_ns)) else 0 end;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Lets nobody take tokens of a bucket before a time, whatever limit he has: for a service that calls somebody else's
-- API, which has said when it may be called again. For programs in any language:
--
--     select pglimit.pause('partner', 'api.example.com', now() + interval '30 seconds');
--
-- Then there is one token, and the others come back behind it. Whoever may wait longer takes ahead. A pause that lasts
-- longer stays as it is, so this can only extend it; pglimit.reset ends it. limiter and key: as for pglimit.allow. Waits
-- for any call that holds the row, by which the pause ends later, and locks it until the transaction ends.
--
-- Returns for how long processes may still grant out of leases of the bucket; usually zero. A time that has passed does
-- nothing. Fails with SQLSTATE 22023 if an argument is nonsense.
create or replace function pglimit.pause(limiter text, key text, until timestamptz) returns interval
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := pause.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := pause.limiter;
    for_ns constant numeric := extract(epoch from until) * 1000000000 - pglimit.clock_ns();
begin
    perform pglimit.request_ns(limiter, key, null, 1, 1, '1 second', null); -- checks the names
    if (for_ns < 3650 * 86400000000000) is not true then
        raise exception 'pglimit: until is %: it must be a time in the next ten years', coalesce(until::text, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Nothing is paused.';
    end if;
    return case when for_ns < 1 then interval '0' else
        ceil(pglimit.token_bucket_pause(_key, _limiter, for_ns::bigint) / 1000.0)::double precision * interval '1 microsecond' end;
end
$$;
-- +goose StatementEnd

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

-- +goose StatementBegin
-- The last migration of the release that these functions are of. A program of an older release, which finds a higher one than its own,
-- does not ask whether the functions are as it knows them.
create or replace function pglimit.schema_version() returns bigint
language sql immutable parallel safe set search_path = '' as $$ select 3 $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Sets all these rules, or none. rules: an array of rows as to_jsonb makes them; what is left out is as in set_limit.
-- Rules that are so already are left alone. prune: delete all others. note: why, for rules without a note and for those
-- that are deleted. dry_run: change nothing. Returns what was changed, or would be: an array of {"before": row or null,
-- "after": row or null}. Waits and fails as set_limit, and then names the rule.
create or replace function pglimit.set_limits(
    rules jsonb, prune boolean default false, note text default null, by text default null,
    dry_run boolean default false
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    asked pglimit.limits[];
    rule record;
    known bigint;
    changes jsonb;
    n text; -- of the rule that is set
    why text;
    state text;
    violated text;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
    _note constant text := coalesce(current_setting('pglimit.note', true), '');
begin
    if prune and coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why the other rules are deleted'
            using errcode = 'invalid_parameter_value';
    end if;
    asked := array(
        select jsonb_populate_record(null::pglimit.limits,
            jsonb_build_object('action', 'enforce', 'enabled', true, 'note', coalesce(note, ''))
            || jsonb_strip_nulls(i.rule) || jsonb_build_object('temporary', i.rule ->> 'expires_at' is not null,
                'kind', coalesce(substring(i.rule ->> 'action', '^(observe|off|places)$'), 'live')))
        from jsonb_array_elements(rules) with ordinality i (rule, n) order by i.n);
    why := (
        select format('rule %s has %s, which no rule has', i.n, to_json(field))
        from jsonb_array_elements(rules) with ordinality i (rule, n) cross join lateral jsonb_object_keys(i.rule) field
        where to_jsonb(asked[i.n]) -> field is null limit 1);
    why := coalesce(why, (
        select format('rules %s and %s are for the same keys', min(a.ordinality), max(a.ordinality))
        from unnest(asked) with ordinality a
        group by a.limiter, a.key, a.prefix, a.kind, a.temporary having count(*) > 1 limit 1));
    if why is not null then
        raise exception 'pglimit: %', why using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- its trigger waits for other changes
    known := (select coalesce(max(h.id), 0) from pglimit.limits_history h);
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', coalesce(note, ''), true);
    begin
        if prune then
            delete from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind, l.temporary::text] not in (
                select array[a.limiter, a.key, a.prefix, a.kind, a.temporary::text] from unnest(asked) a);
        end if;
        for rule in
            select a.* from unnest(asked) with ordinality a left join pglimit.limits l
                on array[l.limiter, l.key, l.prefix, l.kind] = array[a.limiter, a.key, a.prefix, a.kind]
                and l.temporary = a.temporary
            where (a.action, a.limit_text, a.max_wait, a.note, a.enabled, a.expires_at)
                is distinct from (l.action, l.limit_text, l.max_wait, l.note, l.enabled, l.expires_at)
            order by a.ordinality
        loop
            n := format('%s (%s)', rule.ordinality, concat_ws(' ', rule.limiter, rule.key, rule.prefix));
            perform pglimit.set_limit(rule.limiter, rule.limit_text, rule.key, rule.prefix,
                rule.action, rule.max_wait, rule.note, rule.enabled, rule.expires_at);
        end loop;
        changes := (
            select jsonb_agg(jsonb_build_object('before', h.before, 'after', h.after) order by h.id)
            from pglimit.limits_history h where h.id > known);
        if dry_run then
            raise exception using errcode = 'PGLDR', message = 'pglimit: dry run'; -- undoes it
        end if;
    exception
        when sqlstate 'PGLDR' then
            null;
        when others then
            get stacked diagnostics why = message_text, state = returned_sqlstate, violated = constraint_name;
            raise exception 'pglimit: %', coalesce('rule ' || n || ': ', '') || regexp_replace(why, '^pglimit: ', '')
                using errcode = state, constraint = violated;
    end;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return coalesce(changes, '[]');
end
$$;
-- +goose StatementEnd

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
    left_ns bigint; -- of a pause, see token_bucket_paused; null: there is none
    asked bigint[]; -- the bucket at the price of the new lease
begin
    if (_key is not null and _limiter is not null and want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and pglimit.max_window_ns()
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    said := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)], t.paused_ns
    into seen, left_ns from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    left_ns := case when left_ns > seen[3] then left_ns - greatest(seen[3], now_ns) end;
    bucket := case when seen[3] > now_ns + pglimit.step_ns() and (seen[4] > 0 or seen[5] = 0) then pglimit.token_bucket_read(seen, now_ns, seen[2]) else seen end;
    if settle_tokens > 0 and bucket[5] = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket[2] <= bucket[4] then
        bucket[4] := bucket[4] - settle_tokens * bucket[2];
        bucket[5] := case when bucket[4] > 0 then bucket[5] else 0 end;
        bucket[1] := least(9223372036854775807, greatest(bucket[1], now_ns) + settle_spent::numeric * bucket[2]);
        bucket[3] := greatest(bucket[3], now_ns);
    end if;
    if left_ns <= 0 and bucket[2] = _token_ns then -- what is written now knows no pause
        bucket[1] := greatest(bucket[1], least(9223372036854775807, now_ns::numeric + left_ns + _window_ns - _token_ns));
    end if;
    asked := case when left_ns is null then pglimit.token_bucket_read(bucket, now_ns, _token_ns)
        else pglimit.token_bucket_paused(bucket, left_ns, now_ns, _token_ns, _window_ns, null) end;
    asked[5] := case when asked[4] > 0 then asked[5] else now_ns + ttl_ns end;
    if asked[5] - now_ns >= ttl_ns / 5 and (left_ns > 0) is not true then
        granted := least(want, greatest(0, pglimit.tokens_there(asked[1], now_ns, _token_ns, greatest(0, _window_ns - asked[4]))) / share);
    end if;
    if granted > 0 then
        bucket := asked;
        bucket[4] := asked[4] + granted * _token_ns;
    end if;
    if bucket <> seen then -- if there was nothing to settle and nothing is granted, nothing has changed
        update pglimit.token_bucket t
        set full_ns = bucket[1], token_ns = bucket[2], at_ns = bucket[3], leased_ns = nullif(bucket[4], 0), until_ns = nullif(bucket[5], 0), padding = null,
            paused_ns = case when left_ns > 0 then t.paused_ns - greatest(0, seen[3] - bucket[3]) end
        where t.key = _key and t.limiter = _limiter;
    end if;
    return array[now_ns, granted] || case when left_ns is not null and granted = 0
        then pglimit.token_bucket_paused(bucket, left_ns, now_ns, _token_ns, _window_ns, null) else bucket end;
end
$$;
-- +goose StatementEnd

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
        and (lasts is null or lasts[cardinality(lasts)] = m and 1 <= all (lasts)
            and lasts = array(select distinct l from unnest(lasts) l order by l)); -- they rise
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes from many buckets in one call. Each of its steps is as of one reading of the clock, or as of the last write of
-- a row if that is later.
--
-- 1. The usual case is one update, in the order of the keys, of the rows with the same price, no lease, no pause, and
--    enough for all that is asked. A row that does not have enough is not locked, and what is locked is checked again after a
--    wait. With groups (lasts), it updates nothing unless a look of the same statement finds that all rows are so.
-- 2. A look inserts rows that are missing, if there is enough for all that is asked, and denies where tokens are
--    lacking for the one request of a bucket. Not with groups, nor for one bucket. (3 can do that too, but takes half
--    as long again for many new keys.)
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
-- usual: four numbers for each bucket of the usual case: its number, full_ns, at_ns, which is the time of the decision,
-- and until_ns (0: its limit has no calendar window).
-- rest, grants: the other buckets, and grants, as of token_bucket_decide. (grants mean nothing without wants, nor for
-- the buckets of the usual case.)
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean, patience text,
    _calendars text[] default null,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint[] := pglimit.window_ends_ns(_calendars, now_ns);
    n constant int := cardinality(_keys);
    -- Where nothing is asked, 3 looks, at two thirds of the price.
    writable constant boolean := not sure and 0 < any (asks) and pglimit.writable();
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
            set full_ns = greatest(t.full_ns, t.at_ns, k.from_ns) + k.ask * k.token_ns,
                at_ns = greatest(t.at_ns, now_ns), padding = null
            from asked k
            where t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter and t.token_ns = k.token_ns
                and t.until_ns is not distinct from k.ends_ns and t.at_ns <= pglimit.clock_ns() + pglimit.step_ns()
                and coalesce(t.paused_ns, 0) <= t.at_ns
                and k.ask between 1 and pglimit.tokens_there(
                    t.full_ns, greatest(t.at_ns, k.from_ns), k.token_ns, k.window_ns)
                and (lasts is null or n = (
                    select count(*)
                    from asked k
                    join pglimit.token_bucket t
                        on t.key = any (array[k.key]) and t.limiter between k.limiter and k.limiter
                    where t.token_ns = k.token_ns and t.until_ns is not distinct from k.ends_ns
                        and t.at_ns <= now_ns + pglimit.step_ns() and coalesce(t.paused_ns, 0) <= t.at_ns
                        and k.ask between 1 and pglimit.tokens_there(
                            t.full_ns, greatest(t.at_ns, k.from_ns), k.token_ns, k.window_ns)
                ))
            returning array[k.number, t.full_ns, t.at_ns, coalesce(k.ends_ns, 0)] as "row"
        )
        select array_agg(u."row"), count(*) into usual, done from updates u;
        if done > 0 and pglimit.in_time(now_ns, lasts is null or done = n) and done = n then
            return;
        end if;
    elsif writable and n = 1 and asks[1] between 1 and _windows_ns[1] / _tokens_ns[1]
        and 1 = all (array[cardinality(_limiters), cardinality(_tokens_ns), cardinality(_windows_ns),
            cardinality(asks)]) then
        rest := array[1 || pglimit.token_bucket_take(
            _keys[1], _limiters[1], _tokens_ns[1], _windows_ns[1], asks[1], asks[1], null, _calendars[1])];
        if rest[1][3] > 0 or wants is null then
            return;
        end if;
        rest := null;
    end if;
    if (sure is not null and pglimit.token_bucket_valid(
        _keys, _limiters, _tokens_ns, _windows_ns, asks, members, wants, units, aheads_ns, lasts, _calendars)) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short or negative'
            using errcode = 'invalid_parameter_value';
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
                or wants is null and t.token_ns = k.token_ns and t.until_ns is not distinct from k.ends_ns
                and t.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and coalesce(t.paused_ns, 0) <= t.at_ns
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
            when s.missing then array[s.number, now_ns, s.ask, s.from_ns + s.ask * s.token_ns, s.token_ns, now_ns,
                0, coalesce(s.ends_ns, 0)]
            else array[s.number, greatest(s.at_ns, now_ns), 0, s.full_ns, s.token_ns, s.at_ns,
                0, coalesce(s.ends_ns, 0)]
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
-- no row.
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
    if pglimit.writable() then
        lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, want, _calendar);
    for look in 1 .. 2 loop
        select t.answer, t.until_ns, t.until_ns - t.ttl_ns as at_ns into kept
        from pglimit.token_bucket_answers t where t.key = _key and t.limiter = _limiter and t.id = _id;
        -- one date for the bucket and the ID
        now_ns := case when taken[2] = 0 then taken[1] else pglimit.clock_ns() end;
        if kept.at_ns > now_ns + pglimit.step_ns() and pglimit.writable() then
            update pglimit.token_bucket_answers t set until_ns = now_ns + t.ttl_ns
            where t.key = _key and t.limiter = _limiter and t.id = _id and t.until_ns - t.ttl_ns > now_ns + pglimit.step_ns();
        end if;
        if kept.until_ns > now_ns then
            taken := kept.answer[1:7];
            window_ns := kept.answer[8];
            return;
        end if;
        exit when look = 2 or taken[2] = 0;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    window_ns := _window_ns;
    if taken[2] is null then
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
            perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), 1);
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

-- The keys that were denied and granted, in requests of the last 1, 10 and 60 minutes and up to one more, over all
-- processes that count them. For a person in psql:
--     select key, denied_10m from pglimit.top where limiter = 'api' order by denied_10m desc limit 20;
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.top as
select t.limiter, k.key,
    coalesce(sum(k.denied) filter (where t.at_ns > c.now_ns - c.minute_ns), 0) as denied_1m,
    coalesce(sum(k.denied) filter (where t.at_ns > c.now_ns - 10 * c.minute_ns), 0) as denied_10m,
    coalesce(sum(k.denied), 0) as denied_60m,
    coalesce(sum(k.granted) filter (where t.at_ns > c.now_ns - c.minute_ns), 0) as granted_1m,
    coalesce(sum(k.granted) filter (where t.at_ns > c.now_ns - 10 * c.minute_ns), 0) as granted_10m,
    coalesce(sum(k.granted), 0) as granted_60m
from (select pglimit.clock_ns() as now_ns, 60000000000 as minute_ns offset 0) c
cross join pglimit.top_keys t
cross join unnest(t.keys, t.denied, t.granted) k (key, denied, granted)
where t.at_ns > c.now_ns - 60 * c.minute_ns
group by t.limiter, k.key;

-- The state of the strategy, for a person in psql. warmth: 0 is cold, 1 is warm.
create or replace view pglimit.warm_ups as
select limiter, key,
    round(least(1, greatest(0, full_ns - greatest(now_ns + step_ns, free_ns)) / period_ns::numeric), 3) as warmth,
    pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(free_ns - step_ns) as free_at,
    pglimit.time_of(full_ns - step_ns) as cold_at
from (
    select w.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.warm_up w
) w;

-- The state of these strategies, for a person in psql: the tokens that count now, each by the window under which it was
-- granted, or denied.
create or replace view pglimit.windows as
select strategy, limiter, key, counts.used,
    pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(full_ns - step_ns) as full_at
from (
    select w.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join (
        select 'sliding_window' as strategy, * from pglimit.sliding_window
        union all
        select 'sliding_log', * from pglimit.sliding_log
    ) w
) w
cross join lateral (
    select coalesce(sum(abs(c.used)), 0) as used
    from unnest(w.used, w.last_ns, w.window_ns) c (used, last_ns, window_ns)
    where w.now_ns - (c.last_ns - w.step_ns) < c.window_ns
) counts;

-- +goose Down
drop view pglimit.windows;
drop view pglimit.warm_ups;
drop view pglimit.top;
drop function pglimit.token_bucket_wait;
drop function pglimit.token_bucket_take_once;
drop function pglimit.token_bucket_take_many;
drop function pglimit.token_bucket_valid;
drop function pglimit.token_bucket_lease;
drop function pglimit.token_bucket_give_back;
drop function pglimit.set_limits;
drop function pglimit.schema_version;
drop function pglimit.reset;
drop function pglimit.pause;
drop function pglimit.token_bucket_pause;
drop function pglimit.ns_of;
drop function pglimit.limits_since;
drop function pglimit.limit_reaches;
drop function pglimit.limit_history;
drop function pglimit.limit_followers;
drop trigger limit_a_note_changes on pglimit.limits;
drop trigger limit_changes on pglimit.limits;
drop function pglimit.limit_changes;
drop trigger limits_change on pglimit.limits;
drop trigger limit_changed on pglimit.limits;
drop function pglimit.limit_changed;
drop function pglimit.limit_reason;
drop function pglimit.instance_lives;
drop function pglimit.explain_limit;
drop function pglimit.peek;
drop function pglimit.token_bucket_look;
drop view pglimit.holders;
drop function pglimit.enable_limit;
drop function pglimit.delete_limit;
drop function pglimit.limit_on_top;
drop view pglimit.buckets;
drop function pglimit.tokens_left;
drop function pglimit.longest_prefix;
drop function pglimit.limit_numbers;
drop view pglimit.blocks;
drop function pglimit.allow;
drop function pglimit.token_bucket_take_or_block;
drop function pglimit.token_bucket_take;
drop function pglimit.transaction_settings;
drop function pglimit.token_bucket_valid_one;
drop function pglimit.token_bucket_decide;
drop function pglimit.window_ends_ns;
drop function pglimit.token_bucket_rows;
drop function pglimit.token_bucket_asked;
drop function pglimit.in_time;
drop function pglimit.max_window_ns;
drop function pglimit.token_bucket_seen;
drop function pglimit.writable;
drop function pglimit.token_bucket_told;
drop function pglimit.token_bucket_paused;
drop function pglimit.token_bucket_ahead;
drop function pglimit.token_bucket_lock;
drop function pglimit.token_bucket_count_denial;
drop function pglimit.token_bucket_blocked_ns;
drop function pglimit.token_bucket_decision;
drop function pglimit.tokens_there;
drop function pglimit.token_bucket_wait_ns;
drop function pglimit.token_bucket_read;
drop function pglimit.window_step_ns;
drop function pglimit.read_full_ns;
drop function pglimit.rule_of;
drop function pglimit.window_end_ns;
drop function pglimit.acquire;
drop function pglimit.time_of;
drop function pglimit.set_limit;
drop function pglimit.request_ns;
drop function pglimit.period_ns_of;
drop function pglimit.whole_number;
drop function pglimit.renew;
drop function pglimit.release;
drop function pglimit.places_of;
drop function pglimit.limits_for;
drop function pglimit.permits_settle;
drop function pglimit.step_ns;
drop function pglimit.late_ns;
drop function pglimit.clock_ns;

-- Permits: at most so many places of a key are held at once, by whichever processes.
--
-- A key is one row, and its holders are arrays in that row. So a verb (acquire, renew, release) is one update of one
-- row: whoever changes who holds a key holds the row's lock, and nobody sees half of a change.
--
--   - A place is given by the row as it is behind its lock: acquire adds a holder only if the weights of all holders in
--     the row, plus its own, are at most the caller's number of places. Holders who have expired count until they are
--     taken out, and pglimit.permits_settle takes out only those that have expired by a clock that it reads behind the
--     lock. So at no instant of the database's clock do more places have a holder who has not expired.
--   - A clock that was read before a wait for the lock is older than the write. Then a permit expires a little earlier,
--     and nothing else follows: an older clock takes out nobody, and it is refused if it is more than 10 ms away (the
--     clock may have stepped back during the wait, and another call have corrected the row).
--   - Whoever holds a permit counts its time from before the call was sent, and the database from the call. So the
--     holder stops before the place is given away.
--   - The clock stepped back: at_ns, of the last acquire or renewal, is more than 10 ms ahead of the clock. Then every
--     permit has the time that it had at at_ns: no time counts twice, and none is locked out for the length of the step.
--     This is written at the next call, once, also by one that is refused. The clock stepped forward: permits expire
--     earlier by the length of the step, and a renewal says so.
--   - A token is larger than all tokens of the key before it, and not less than the clock when it was given: so it
--     grows too after the row was swept or lost (unless the clock has stepped back by more than an hour meanwhile).
--   - A refusal is a plain read: it locks and writes nothing.
--   - A number of places that the table pglimit.limits says is read before the update that gives the place, and read again
--     behind the lock. So a change holds for each call that begins after its commit.
--
-- Not unlogged: after a crash nobody would know the holders.

-- +goose Up
--     last_token  the last token given
--     held        the sum of the weights, also of permits that have expired and are still in the row
--     at_ns       when the last permit was given or renewed
--     forget_ns   when the row no longer means anything: an hour after the last permit has expired, or later
--     holders     who holds a permit; tokens, weights, since_ns and until_ns (when it expires) are theirs, in this order
create table pglimit.permits (
    key        text collate "C" not null,
    limiter    text collate "C" not null,
    last_token pglimit.nanoseconds not null,
    held       bigint not null,
    at_ns      pglimit.nanoseconds not null,
    forget_ns  pglimit.nanoseconds not null,
    holders    text[] collate "C" not null,
    tokens     bigint[] not null,
    weights    bigint[] not null,
    since_ns   bigint[] not null,
    until_ns   bigint[] not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- The permits that are held now, for a person in psql.
create view pglimit.holders as
select p.limiter, p.key, h.holder, h.weight, h.token, pglimit.time_of(h.since_ns - p.step_ns) as since, pglimit.time_of(h.until_ns - p.step_ns) as expires_at
from (
    select p.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.permits p
) p
cross join unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns) h (holder, token, weight, since_ns, until_ns)
where h.until_ns - p.step_ns > p.now_ns;

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
            select coalesce(array_agg(h.holder order by h.place), '{}'), coalesce(array_agg(h.token order by h.place), '{}'),
                coalesce(array_agg(h.weight order by h.place), '{}'), coalesce(array_agg(h.since_ns - back_ns order by h.place), '{}'),
                coalesce(array_agg(h.until_ns - back_ns order by h.place), '{}'), coalesce(sum(h.weight), 0)
            from unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns) with ordinality h (holder, token, weight, since_ns, until_ns, place)
            where h.until_ns - back_ns > now_ns),
        at_ns = case when back_ns > 0 then now_ns else p.at_ns end, forget_ns = p.forget_ns - back_ns
    where p.key = _key and p.limiter = _limiter;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Makes a permit last for ttl from now, but never shorter than it did. Returns false if the holder has none: it has
-- expired, or was released. Locks the row until the transaction ends if it returns true.
create or replace function pglimit.renew(limiter text, key text, holder text, ttl interval default '30 seconds', out renewed boolean)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := renew.key; -- whatever the caller's collation is, and the same constant for Citus as in the call
    ttl_ns constant bigint := extract(epoch from renew.ttl) * 1000000000;
    now_ns bigint;
    seen pglimit.permits;
begin
    if (ttl_ns between 100000000 and 86400000000000) is not true then
        raise exception 'pglimit: ttl is %: it must be at least 100 ms and at most a day', ttl using errcode = 'invalid_parameter_value';
    end if;
    for try in 1..6 loop
        if try > 5 then
            raise exception 'pglimit: had to wait for other calls' using errcode = 'serialization_failure', hint = 'Nothing was changed. Ask again.';
        end if;
        now_ns := pglimit.clock_ns();
        update pglimit.permits p
        set until_ns[array_position(p.holders, renew.holder)] = greatest(now_ns + ttl_ns, p.until_ns[array_position(p.holders, renew.holder)]),
            at_ns = greatest(p.at_ns, now_ns), forget_ns = greatest(p.forget_ns, now_ns + ttl_ns + 3600000000000)
        where p.key = _key and p.limiter = renew.limiter collate "C" and renew.holder collate "C" = any (p.holders)
            and p.until_ns[array_position(p.holders, renew.holder)] > now_ns and p.at_ns <= now_ns + pglimit.step_ns()
            and abs(pglimit.clock_ns() - now_ns) <= pglimit.step_ns(); -- checked again after a wait
        renewed := found;
        exit when renewed;
        select p.* into seen from pglimit.permits p where p.key = _key and p.limiter = renew.limiter collate "C";
        now_ns := pglimit.clock_ns();
        exit when seen.key is null or renew.holder collate "C" = any (seen.holders) is not true
            or seen.at_ns <= now_ns + pglimit.step_ns() and seen.until_ns[array_position(seen.holders, renew.holder)] <= now_ns;
        perform pglimit.permits_settle(renew.key, renew.limiter);
    end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Gives a permit back. Returns false if the holder has none: it was released before, or has expired, and another
-- holder's call has taken it out. Locks the row until the transaction ends if it returns true. relaxed: the commit need not
-- wait for the disk.
create or replace function pglimit.release(limiter text, key text, holder text, relaxed boolean default false, out released boolean)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := release.key; -- whatever the caller's collation is, and the same constant for Citus as in the call
begin
    update pglimit.permits p
    set (holders, tokens, weights, since_ns, until_ns, held) = (
        select p.holders[:i - 1] || p.holders[i + 1:], p.tokens[:i - 1] || p.tokens[i + 1:], p.weights[:i - 1] || p.weights[i + 1:],
            p.since_ns[:i - 1] || p.since_ns[i + 1:], p.until_ns[:i - 1] || p.until_ns[i + 1:],
            p.held - p.weights[i]
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
-- How many places a key has by the rules of the table pglimit.limits with the action places: null, if none is for it. Volatile,
-- because it must not see the table as of the beginning of the statement that calls it, which may have waited since.
create or replace function pglimit.places_of(_limiter text, _key text) returns bigint
language plpgsql volatile set search_path = '' set row_security = off set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    if to_regclass('pglimit.limits') is null then
        return pglimit.on_coordinator(format('select pglimit.places_of(%L, %L)', _limiter, _key));
    end if;
    return (
        select l.limit_text::bigint
        from (
            select * from pglimit.limits where limiter = _limiter and key = _key and kind = 'places'
            union all select * from pglimit.limits where limiter = _limiter and key is null and kind = 'places'
                and prefix = any (array(select left(_key, n) from generate_series(1, length(_key)) n))
            union all select * from pglimit.limits where limiter = _limiter and key is null and prefix is null and kind = 'places'
        ) l
        where l.enabled and (l.expires_at > clock_timestamp()) is not false
        order by l.key, length(l.prefix) desc nulls last, l.temporary desc limit 1
    );
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Acquires a permit of some weight (1, if there is only one kind of work) where at most so many places are held at once.
-- It lasts for ttl, unless pglimit.renew makes it longer or pglimit.release gives it back.
--
-- limiter and key: as for pglimit.allow. places: how many there are. Null: as the table pglimit.limits says, or, where it has no
-- rule with the action places for the key, default_places. holder: who asks, a text that nobody else uses. A holder has one permit of a
-- key at most: asking again, with the same weight, renews it and returns its token. Null: the token, as text.
--
-- Returns whether there was a place, the token (larger than all before it of this key), when the permit expires,
-- and, if there was no place, when the first of the others expires if nobody renews it. Never waits for a place. Locks the row until
-- the transaction ends if there was one. If there is none, it is a plain read: it locks nothing, unless the row holds permits that have
-- expired, or was written before the clock stepped back. Fails with SQLSTATE 22023 if an argument is nonsense, there is no number of
-- places, the weight is more than that, or not that of the holder's permit.
create or replace function pglimit.acquire(
    limiter text, key text, places bigint default null, weight bigint default 1, ttl interval default '30 seconds', holder text default null,
    default_places bigint default null,
    out acquired boolean, out token bigint, out expires_at timestamptz, out retry_after interval
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off set row_security = off as $$
#variable_conflict use_column
declare
    _key constant text collate "default" := acquire.key; -- whatever the caller's collation is, and the same constant for Citus as in the call
    most constant int := 1000; -- holders of a key, who are all in its row
    ttl_ns constant bigint := extract(epoch from acquire.ttl) * 1000000000;
    now_ns bigint;
    free bigint; -- places, if nobody held one
    taken bigint; -- places, with this one
    seen pglimit.permits;
    live record;
begin
    if (octet_length(acquire.limiter) between 1 and 128 and octet_length(acquire.key) between 1 and 1024 and acquire.weight between 1 and coalesce(acquire.places, 1000000000000000)
        and coalesce(acquire.places, acquire.default_places, 1) between 1 and 1000000000000000 and ttl_ns between 100000000 and 86400000000000 and coalesce(octet_length(acquire.holder), 1) between 1 and 256) is not true then
        perform pglimit.request_ns(acquire.limiter, acquire.key, null, 1, 1, '1 second', null); -- checks the names
        raise exception 'pglimit: weight % of % places, ttl %, holder %', acquire.weight, coalesce(acquire.places, acquire.default_places), acquire.ttl, acquire.holder using errcode = 'invalid_parameter_value',
            hint = 'Weight: at least 1, and at most places. Places: at most 1e15. Ttl: 100 ms to a day. Holder: 1 to 256 bytes, or null.';
    end if;
    for try in 1..6 loop
        if try > 5 then
            raise exception 'pglimit: had to wait for other calls' using errcode = 'serialization_failure', hint = 'Nothing was changed. Ask again.';
        end if;
        free := coalesce(acquire.places, pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
        now_ns := pglimit.clock_ns();
        update pglimit.permits p
        set last_token = greatest(p.last_token + 1, now_ns), held = p.held + acquire.weight,
            at_ns = greatest(p.at_ns, now_ns), forget_ns = greatest(p.forget_ns, now_ns + ttl_ns + 3600000000000),
            holders = p.holders || coalesce(acquire.holder, greatest(p.last_token + 1, now_ns)::text), tokens = p.tokens || greatest(p.last_token + 1, now_ns),
            weights = p.weights || acquire.weight, since_ns = p.since_ns || now_ns, until_ns = p.until_ns || now_ns + ttl_ns
        where p.key = _key and p.limiter = acquire.limiter collate "C"
            and p.held + acquire.weight <= free
            and p.at_ns <= now_ns + pglimit.step_ns() and cardinality(p.holders) < most
            and acquire.holder collate "C" = any (p.holders) is not true
            and abs(pglimit.clock_ns() - now_ns) <= pglimit.step_ns() -- checked again after a wait
        returning p.last_token, p.held into token, taken;
        if found then
            exit when acquire.places is not null or taken <= coalesce(pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
            -- They are fewer now: once more, behind the lock.
            perform pglimit.release(acquire.limiter, acquire.key, coalesce(acquire.holder, token::text));
            continue;
        end if;
        select p.* into seen from pglimit.permits p where p.key = _key and p.limiter = acquire.limiter collate "C";
        now_ns := pglimit.clock_ns();
        free := coalesce(acquire.places, pglimit.places_of(acquire.limiter collate "C", _key), acquire.default_places);
        if seen.at_ns > now_ns + pglimit.step_ns() then
            perform pglimit.permits_settle(acquire.key, acquire.limiter);
        elsif acquire.holder collate "C" = any (seen.holders) and pglimit.renew(acquire.limiter, acquire.key, acquire.holder, acquire.ttl) then
            select p.tokens[h.place], p.weights[h.place] into token, taken
            from pglimit.permits p, array_position(p.holders, acquire.holder) h (place) where p.key = _key and p.limiter = acquire.limiter collate "C";
            exit when taken = acquire.weight;
            raise exception 'pglimit: weight %: holder % has a permit of key % already, of weight %', acquire.weight, to_json(acquire.holder), to_json(acquire.key), taken
                using errcode = 'invalid_parameter_value', hint = 'Nothing was changed. Release that permit first, or ask as another holder.';
        elsif free is null then
            raise exception 'pglimit: places is null, and pglimit.limits has no rule for semaphore % and key %', to_json(acquire.limiter), to_json(acquire.key)
                using errcode = 'invalid_parameter_value', constraint = 'places_are_set', hint = format('Nothing was acquired. Give places or default_places, '
                    'or set a number for all keys: select pglimit.set_limit(%L, ''5'', action => ''places'', note => ''default'')', acquire.limiter);
        elsif acquire.weight > free then
            raise exception 'pglimit: weight %: by pglimit.limits, semaphore % has % places for key %', acquire.weight, to_json(acquire.limiter), free, to_json(acquire.key)
                using errcode = 'invalid_parameter_value', hint = 'Nothing was acquired. A permit can have as many places as there are.';
        elsif seen.key is null then
            insert into pglimit.permits as p (key, limiter, last_token, held, at_ns, forget_ns, holders, tokens, weights, since_ns, until_ns)
            values (acquire.key, acquire.limiter, now_ns, acquire.weight, now_ns, now_ns + ttl_ns + 3600000000000,
                array[coalesce(acquire.holder, now_ns::text)], array[now_ns], array[acquire.weight], array[now_ns], array[now_ns + ttl_ns])
            on conflict do nothing
            returning p.last_token into token;
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

-- +goose Down
drop function pglimit.acquire;
drop function pglimit.places_of;
drop function pglimit.release;
drop function pglimit.renew;
drop function pglimit.permits_settle;
drop view pglimit.holders;
drop table pglimit.permits;

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

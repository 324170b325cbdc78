-- The functions that "pglimit distribute" puts in the place of those of one server, or beside them: the files of the folder
-- functions/citus, and functions with statements in which Citus refuses something that is changed here. Generated: do not
-- edit, change the files and run "go generate ./migrations".

-- See functions/acquire.sql.
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
            and pglimit.is_now(now_ns, at_ns) -- checked again after a wait
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

-- Returns whether now_ns is still the time, see late_ns. For the condition of an update, which checks it again after a
-- wait for the row. row_ns: a column of that row. It has no effect: it is there, and the function says that it is immutable,
-- so that Postgres calls it for the row, and Citus, which refuses a volatile function there, leaves that to the row's node.
create or replace function pglimit.is_now(now_ns bigint, row_ns bigint) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
    return pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns();
end
$$;

-- Returns what limits_for does, on any node: the coordinator has the table of limits, and other nodes ask it, in a transaction of
-- its own. Fails with SQLSTATE 58000 if it does not answer.
create or replace function pglimit.limits_at(_limiter text, _key text) returns table (
    id bigint, limiter text, key text, prefix text, kind text, action text, limit_text text, enabled boolean, expires_at timestamptz, temporary boolean
)
language plpgsql set search_path = '' as $$
declare
    coordinator record;
    rules jsonb;
begin
    if to_regclass('pglimit.limits') is not null then
        execute 'select jsonb_agg(l) from pglimit.limits_for($1, $2) l' into rules using _limiter, _key;
    else
        select c.success, c.result into coordinator
        from run_command_on_coordinator(format('select jsonb_agg(l) from pglimit.limits_for(%L, %L) l', _limiter, _key)) c;
        if coordinator.success is not true then
            raise exception 'pglimit: the coordinator of Citus does not answer: %', coordinator.result using errcode = 'system_error';
        end if;
        rules := nullif(coordinator.result, ''); -- a null
    end if;
    return query select r.* from jsonb_to_recordset(rules) r (
        id bigint, limiter text, key text, prefix text, kind text, action text, limit_text text, enabled boolean, expires_at timestamptz, temporary boolean);
end
$$;

-- Runs a statement on each shard that this node of Citus has of a table (see Distribute), one after another. It names the
-- table as %1$s, and returns a number and a boolean.
--
-- n: the sum of the numbers. done: whether all booleans are true.
create or replace function pglimit.on_shards(_table text, statement text, out n bigint, out done boolean)
language plpgsql set search_path = '' as $$
declare
    shard text;
    one record;
begin
    n := 0;
    done := true;
    for shard in
        select shard_name(s.logicalrelid, s.shardid)
        from pg_dist_shard s join pg_dist_placement p on p.shardid = s.shardid join pg_dist_local_group l on l.groupid = p.groupid
        where s.logicalrelid = _table::regclass
    loop
        execute format(statement, shard) into one;
        n := n + one.n;
        done := done and one.done;
    end loop;
end
$$;

-- See functions/places_of.sql.
create or replace function pglimit.places_of(_limiter text, _key text) returns bigint
language plpgsql volatile set search_path = '' set row_security = off
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return (
        select l.limit_text::bigint from pglimit.limits_at(_limiter, _key) l
        where l.kind = 'places' and l.enabled and (l.expires_at > clock_timestamp()) is not false
        order by l.key, length(l.prefix) desc nulls last, l.temporary desc limit 1);
end
$$;

-- See functions/renew.sql.
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
            and pglimit.is_now(now_ns, at_ns); -- checked again after a wait
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

-- See functions/rule_of.sql.
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
        from pglimit.limits_at(_limiter, _key) l
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

-- See functions/token_bucket_decide.sql.
create or replace function pglimit.token_bucket_decide(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean,
    _calendars text[] default null,
    out grants bigint[], out buckets bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
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
                set full_ns = b[1] + 0, token_ns = b[2] + 0, at_ns = b[3] + 0,
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

-- See functions/token_bucket_give_back.sql.
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
    update pglimit.token_bucket set limiter = limiter where false; -- before the read: see token_bucket_take
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

-- See functions/token_bucket_pause.sql.
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
    set full_ns = b[1] + 0, at_ns = b[3] + 0, leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0), padding = null,
        paused_ns = b[3] + 0 + for_ns
    where t.key = _key and t.limiter = _limiter;
    return case when seen[4] > 0 then greatest(0, seen[5] - greatest(seen[3], now_ns)) else 0 end;
end
$$;

-- What functions/token_bucket_rows.sql does, in a statement for each key, so that Citus sends it to its shard as it is.
create or replace function pglimit.token_bucket_rows(_keys text[], _limiters text[]) returns bigint[]
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan as $$
declare
    b bigint[];
    rows bigint[];
begin
    for i in 1 .. cardinality(_keys) loop
        select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0),
            coalesce(t.paused_ns, 0)] into b
        from pglimit.token_bucket t where t.key = _keys[i] and t.limiter = coalesce(_limiters[i], _limiters[1]);
        rows := rows || array[coalesce(b, '{0,0,0,0,0,0}')];
    end loop;
    return rows;
end
$$;

-- See functions/token_bucket_take.sql.
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
            and pglimit.is_now(now_ns, at_ns)
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into taken;
    elsif writable and want > 0 then
        update pglimit.token_bucket set limiter = limiter where false; -- before the read
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

-- Takes ask tokens from each of many buckets of one limiter, with one price, which are in one shard. For token_bucket_take_shard.
--
-- Each statement names the keys, so that Citus sends it to their shard as it is. It is planned each time, because Citus
-- has to see the keys, and has no join, which would double the price of that.
--
-- 1. The usual case is one update, in the order of the keys, of the rows with that price, no lease, no pause, and enough.
-- 2. A look denies where that is lacking.
-- 3. Rows that are missing are inserted.
--
-- Behind 1, locks are not in the order of the keys: 2 and 3 wait for a millisecond only, see token_bucket_take_many.
--
-- numbers: which of the keys, in bytewise order. The others: as for token_bucket_take. usual, rest: as of
-- token_bucket_take_many; buckets that are neither in the one nor in the other are to be decided.
create or replace function pglimit.token_bucket_take_alike(
    _keys text[], numbers int[], _limiter text, _token_ns bigint, _window_ns bigint, ask bigint, _calendar text, out usual bigint[], out rest bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint := pglimit.window_end_ns(_calendar, now_ns);
    keys constant text[] := array(select _keys[i] from unnest(numbers) i);
    n constant int := cardinality(keys);
    writable constant boolean := ask between 1 and _window_ns / _token_ns and _window_ns <= pglimit.max_window_ns()
        and pglimit.writable();
    left_over text[] := keys;
    done int := 0;
    written int;
    seen bigint[];
    said text;
begin
    if writable then
        with updates as (
            update pglimit.token_bucket t
            set full_ns = greatest(t.full_ns, t.at_ns, coalesce(ends_ns, now_ns)) + ask * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
            where t.key = any (keys) and t.limiter = _limiter and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
                and ask <= (coalesce(ends_ns, greatest(t.at_ns, now_ns)) + _window_ns - greatest(t.full_ns, coalesce(ends_ns, greatest(t.at_ns, now_ns)))) / _token_ns
                and t.at_ns <= now_ns + pglimit.step_ns() and coalesce(t.paused_ns, 0) <= t.at_ns
            returning array[numbers[pg_catalog.width_bucket(t.key, keys)], t.full_ns, t.at_ns, coalesce(ends_ns, 0)] as "row"
        )
        select array_agg(u."row"), count(*) into usual, done from updates u;
        if done > 0 and pglimit.in_time(now_ns) and done = n then
            return;
        end if;
        said := pg_catalog.set_config('lock_timeout', '1ms', true);
        for i in 1 .. done loop
            left_over := array_remove(left_over, _keys[usual[i][1]]); -- it is done
        end loop;
    end if;
    select array_agg(array[numbers[pg_catalog.width_bucket(t.key, keys)], t.full_ns, t.token_ns, t.at_ns, coalesce(t.until_ns, 0), coalesce(t.paused_ns, 0)]) into seen
    from pglimit.token_bucket t where t.key = any (left_over) and t.limiter = _limiter;
    now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
    ends_ns := pglimit.window_end_ns(_calendar, now_ns);
    for i in 1 .. coalesce(cardinality(seen) / 6, 0) loop
        left_over := array_remove(left_over, _keys[seen[i][1]]);
        if ask > (coalesce(ends_ns, greatest(seen[i][4], now_ns)) + _window_ns - greatest(seen[i][2], coalesce(ends_ns, greatest(seen[i][4], now_ns)))) / _token_ns
            and seen[i][3] = _token_ns and seen[i][5] = coalesce(ends_ns, 0) and seen[i][4] <= now_ns + pglimit.step_ns() and seen[i][6] <= seen[i][4] then
            rest := rest || array[array[seen[i][1], greatest(seen[i][4], now_ns), 0, seen[i][2], _token_ns, seen[i][4], 0, seen[i][5]]];
        end if;
    end loop;
    if writable and left_over <> '{}' then
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
        select u.key, _limiter, coalesce(ends_ns, now_ns) + ask * _token_ns, _token_ns, now_ns, ends_ns
        from unnest(left_over) with ordinality u(key, number)
        order by u.number
        on conflict do nothing;
        get diagnostics written = row_count;
        said := pglimit.in_time(now_ns, written = cardinality(left_over));
        rest := rest || (select array_agg(array[numbers[pg_catalog.width_bucket(u.key collate "C", keys)], now_ns, ask, coalesce(ends_ns, now_ns) + ask * _token_ns, _token_ns, now_ns, 0, coalesce(ends_ns, 0)])
            from unnest(left_over) u(key));
    end if;
end
$$;

-- Does nothing: all that it returns is null. On distributed tables, several buckets are for token_bucket_take_shard, and a
-- group for token_bucket_take, bucket by bucket in one transaction.
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], sure boolean, patience text, _calendars text[] default null,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' as $$
begin
end
$$;

-- See functions/token_bucket_take_once.sql.
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
        update pglimit.token_bucket set limiter = limiter where false; update pglimit.token_bucket_answers set limiter = limiter where false; -- see token_bucket_take
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

-- See functions/token_bucket_take_or_block.sql.
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
        update pglimit.token_bucket set limiter = limiter where false; update pglimit.token_bucket_blocks set limiter = limiter where false; -- see token_bucket_take
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

-- What token_bucket_take_many does for requests by themselves, where the table is distributed: see there for parameters, locks
-- and results. It takes from buckets that are asked for alike together, see token_bucket_take_alike. All else is for
-- token_bucket_decide.
--
-- _key is one of _keys: Citus runs the function where that is. All must be in one shard: there is one clock for a bucket,
-- and no commit in two phases. Else it fails with SQLSTATE 40001, and has taken nothing. relaxed: as for token_bucket_take.
create or replace function pglimit.token_bucket_take_shard(
    _key text, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], patience text, _calendars text[], relaxed boolean,
    out usual bigint[], out rest bigint[], out grants bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off as $$
declare
    n constant int := cardinality(_keys);
    alike record;
    taken record;
    said text;
begin
    if pglimit.token_bucket_valid(_keys, _limiters, _tokens_ns, _windows_ns, asks, members, wants, units, aheads_ns, null, _calendars) is not true then
        raise exception 'token_bucket_take_shard: an argument is null, too short or negative' using errcode = 'invalid_parameter_value';
    elsif 1 < (select count(distinct pg_catalog.get_shard_id_for_distribution_column('pglimit.token_bucket', u.key)) from unnest(_key || _keys) u(key)) then
        raise exception 'pglimit: the keys are in several shards' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask for each bucket by itself.';
    end if;
    said := pglimit.transaction_settings(patience, relaxed);
    for alike in
        select array_agg(i order by i) as numbers, coalesce(_limiters[i], _limiters[1]) as limiter, coalesce(_tokens_ns[i], _tokens_ns[1]) as token_ns,
            coalesce(_windows_ns[i], _windows_ns[1]) as window_ns, coalesce(asks[i], asks[1]) as ask,
            coalesce(_calendars[i], case when cardinality(_calendars) = 1 then _calendars[1] end) as calendar
        from generate_series(1, n) i
        where wants is null
        group by 2, 3, 4, 5, 6
        order by min(i)
    loop
        taken := pglimit.token_bucket_take_alike(_keys, alike.numbers, alike.limiter, alike.token_ns, alike.window_ns, alike.ask, alike.calendar);
        usual := usual || taken.usual;
        rest := rest || taken.rest;
        said := pg_catalog.set_config('lock_timeout', '1ms', true); -- the next are not behind these in the order of the keys
    end loop;
    if coalesce(cardinality(usual) / 4, 0) + coalesce(cardinality(rest) / 8, 0) = n then
        return;
    end if;
    for i in 1 .. coalesce(cardinality(usual) / 4, 0) loop
        _keys[usual[i][1]] := null; -- it is done
    end loop;
    for i in 1 .. coalesce(cardinality(rest) / 8, 0) loop
        _keys[rest[i][1]] := null;
    end loop;
    taken := pglimit.token_bucket_decide(_keys, _limiters, _tokens_ns, _windows_ns, members,
        coalesce(wants, array(select coalesce(asks[i], asks[1]) from generate_series(1, n) i)), units, aheads_ns, null, wants is not null or n = 1, _calendars);
    grants := taken.grants;
    rest := taken.buckets || rest;
end
$$;

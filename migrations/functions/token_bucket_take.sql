-- Takes want tokens from one bucket, in whole multiples of unit (all or nothing, if the two are equal).
--
-- The usual case is one update: of a row with the same price, no lease, and enough for all. A row that does not
-- have enough is not locked. If another call has changed the row while this one waited for it, Postgres checks it
-- again, and it stays locked even if it lacks tokens then. Otherwise a look (a plain read, and the clock behind it)
-- may show that there is no row, which is inserted; or that it lacks tokens: then this locks and writes nothing; or that
-- it has some units: then these are taken, if the row is still as it was seen. All else is for token_bucket_decide:
-- see there for what that locks.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- patience: gives up with SQLSTATE 55P03 after that time if another call holds the row (or a little later,
-- if it stands in a queue). Changes lock_timeout until the transaction ends. Null: it waits.
--
-- Returns seven numbers: the time of the decision, the tokens granted, and full_ns, token_ns, at_ns, leased_ns and
-- until_ns of the row after it (0: null, or there is no row).
--
-- True of all functions here: what reads before it writes first takes the table's lock that a write takes, because
-- a read that becomes a write can deadlock with REINDEX. Without enable_seqscan = off, a session would keep a plan that
-- was made while the table was small. set_config is assigned to something: "perform" is a query of its own.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    seen bigint[];
    there bigint; -- tokens
    result bigint[];
begin
    if patience is not null then
        patience := pg_catalog.set_config('lock_timeout', patience, true);
    end if;
    if pg_catalog.current_setting('transaction_read_only') = 'off' then -- on a standby it can only deny
        update pglimit.token_bucket t
        set full_ns = greatest(t.full_ns, t.at_ns, now_ns) + want * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
        where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.leased_ns is null
            and want <= (now_ns + _window_ns - greatest(t.full_ns, now_ns)) / _token_ns
            and t.at_ns <= now_ns + pglimit.step_ns() and unit between 1 and want and want % unit = 0
            and abs(pglimit.clock_ns() - now_ns) <= pglimit.step_ns() -- checked again after a wait: now_ns may be too old then
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, 0] into result;
    end if;
    if result is null then
        if (unit <= _window_ns / _token_ns and (want = 0 or unit between 1 and want)) is not true then
            raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %', want, unit, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
        end if;
        select array[t.full_ns, t.token_ns, t.at_ns, t.leased_ns] into seen
        from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        there := case
            when seen is null and _window_ns <= pglimit.max_window_ns() then _window_ns / _token_ns
            when seen[2] = _token_ns and seen[4] is null and seen[3] <= now_ns + pglimit.step_ns()
                then (greatest(seen[3], now_ns) + _window_ns - greatest(seen[1], now_ns)) / _token_ns
        end;
        if unit > there then
            return array[greatest(seen[3], now_ns), 0, seen[1], _token_ns, seen[3], 0, 0];
        elsif there > 0 and want > 0 then
            there := least(want, there) / unit * unit;
            if seen is null then
                insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
                values (_key, _limiter, now_ns + there * _token_ns, _token_ns, now_ns)
                on conflict do nothing
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, 0] into result;
            elsif pg_catalog.current_setting('transaction_read_only') = 'off' then
                update pglimit.token_bucket t
                set full_ns = greatest(t.full_ns, t.at_ns, now_ns) + there * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
                where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.leased_ns is null
                    and t.full_ns = seen[1] and t.at_ns = seen[3]
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, 0] into result;
            end if;
        end if;
    end if;
    if result is null then
        select array(select b.number from unnest(d.buckets) with ordinality b(number, i) where b.i > 1) into result
        from pglimit.token_bucket_decide(array[_key], array[_limiter], array[_token_ns], array[_window_ns], null, array[want], array[unit], null, null, false) d;
        return result;
    end if;
    -- The write may have waited for a call that changed nothing in the end. Then the grant is dated too early: tokens
    -- refilled during the wait would come on top of it. So it is dated later, and of these tokens come what it lacks.
    now_ns := pglimit.clock_ns();
    if now_ns > result[1] + 10000000 then -- 10 ms
        result[3] := greatest(result[3], now_ns + result[2] * _token_ns);
        there := least(want - result[2], (now_ns + _window_ns - result[3]) / _token_ns) / unit * unit;
        update pglimit.token_bucket t set full_ns = result[3] + there * _token_ns, at_ns = now_ns
        where t.key = _key and t.limiter = _limiter
        returning array[t.at_ns, result[2] + there, t.full_ns, t.token_ns, t.at_ns, 0, 0] into result;
    end if;
    return result;
end
$$;

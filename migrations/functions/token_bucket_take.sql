-- Takes want tokens from one bucket, in whole multiples of unit (all or nothing, if the two are equal).
--
-- True of every take, of one bucket or of many:
--
--   - A grant locks the rows of its buckets until the transaction ends, or inserts them. A denial locks nothing, unless
--     another call changed the row, or blocked the key, while this one waited, or there is something to write: denials
--     that are counted, and, once, a row that was written before the clock stepped back.
--   - A grant is decided by the row behind its lock, a denial by a plain read and the clock behind that. It may deny by
--     a row that is being changed: a take can only leave less, and what comes back counts from its commit on.
--   - Several buckets are locked in the bytewise order of key and limiter. Who locks out of order waits for a
--     millisecond only: see token_bucket_take_many.
--   - What a row means to a call with another price, or after the clock stepped back: see token_bucket_read.
--
-- 1. The usual case is one update: of a row with the same price, no lease, and enough for all. A row that does not
--    have enough is not locked. If another call has changed the row while this one waited for it, Postgres checks it
--    again.
-- 2. A look may show that there is no row, which is inserted; or that it lacks tokens, which is a denial; or that it
--    has some units: then these are taken, if the row is still as it was seen.
-- 3. All else is for token_bucket_decide_one.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- _calendar: null, or the limit is _window_ns tokens in each window of that calendar, see window_end_ns; _token_ns is 1.
-- full_ns counts from the window's end then, so nothing is refilled before it.
-- patience: gives up with SQLSTATE 55P03 after that time if another call holds the row (or a little later,
-- if it stands in a queue). Changes lock_timeout until the transaction ends. Null: it waits.
-- relaxed: the commit need not wait for the disk. Changes synchronous_commit until the transaction ends.
-- rule: null, or a blocked key is denied, and other denials are counted by it: see token_bucket_count_denial. '{}': they
-- are not counted.
--
-- Returns seven numbers: the time of the decision, the tokens granted, and full_ns, token_ns, at_ns, leased_ns and
-- until_ns of the row after it (0: null, or there is no row). With a rule there is an eighth: for how many nanoseconds
-- the key is blocked (0: it is not).
--
-- True of all functions here: what reads before it writes first takes the table's lock that a write takes, because
-- a read that becomes a write can deadlock with REINDEX: by a write that finds nothing, because Citus sends "lock table" to
-- all its nodes. No condition of a write calls a volatile function, which Citus refuses. Without enable_seqscan = off, a session would keep a plan that
-- was made while the table was small. set_config is assigned to something: "perform" is a query of its own.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text, rule bigint[] default null, _calendar text default null,
    relaxed boolean default false
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint := pglimit.window_end_ns(_calendar, now_ns);
    seen bigint[];
    there bigint; -- tokens
    from_ns bigint; -- what is used counts from here
    result bigint[];
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if rule is not null then
        if (want > 0 and (rule = '{}' or cardinality(rule) = 5 and 0 < all (rule[1:4]) and 0 <= rule[5] and rule[3] <= rule[4]
            and 3650 * 86400000000000 >= all (rule[2:5]))) is not true then
            raise exception 'token_bucket_take: want %, rule %', want, rule using errcode = 'invalid_parameter_value';
        end if;
        if pg_catalog.current_setting('transaction_read_only') = 'off' then
            update pglimit.token_bucket set at_ns = at_ns where false;
            update pglimit.token_bucket_blocks set at_ns = at_ns where false;
        end if;
        seen := pglimit.token_bucket_look(_key, _limiter, _token_ns, _calendar);
        if seen[8] > 0 then
            if seen[9] > seen[1] + pglimit.step_ns() then
                perform pglimit.token_bucket_count_denial(_key, _limiter, null); -- moves the block
            end if;
            return seen[1:8];
        end if;
        now_ns := pglimit.clock_ns(); -- not dated before the end of a block
        ends_ns := pglimit.window_end_ns(_calendar, now_ns);
    end if;
    if pg_catalog.current_setting('transaction_read_only') = 'off' then -- on a standby it can only deny
        update pglimit.token_bucket t
        set full_ns = greatest(t.full_ns, t.at_ns, coalesce(ends_ns, now_ns)) + want * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
        where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
            and want <= (coalesce(ends_ns, now_ns) + _window_ns - greatest(t.full_ns, coalesce(ends_ns, now_ns))) / _token_ns
            and t.at_ns <= now_ns + pglimit.step_ns() and unit between 1 and want and want % unit = 0
            and pglimit.is_now(now_ns, t.at_ns) -- checked again after a wait: now_ns may be too old then
        returning array[t.at_ns, want, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into result;
    end if;
    if result is null then
        select array[t.full_ns, t.token_ns, t.at_ns, t.until_ns] into seen
        from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
        ends_ns := case when now_ns < ends_ns then ends_ns else pglimit.window_end_ns(_calendar, now_ns) end;
        from_ns := coalesce(ends_ns, greatest(seen[3], now_ns));
        there := case
            when seen is null and _window_ns <= pglimit.max_window_ns() then _window_ns / _token_ns
            when seen[2] = _token_ns and seen[4] is not distinct from ends_ns and seen[3] <= now_ns + pglimit.step_ns()
                then (from_ns + _window_ns - greatest(seen[1], from_ns)) / _token_ns
        end;
        if unit > there and unit between 1 and _window_ns / _token_ns and unit <= want then
            result := array[greatest(seen[3], now_ns), 0, seen[1], _token_ns, seen[3], 0, coalesce(ends_ns, 0)];
        elsif there >= unit and unit between 1 and want then
            there := least(want, there) / unit * unit;
            if seen is null then
                insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns, until_ns)
                values (_key, _limiter, from_ns + there * _token_ns, _token_ns, now_ns, ends_ns)
                on conflict do nothing
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into result;
            else
                update pglimit.token_bucket t
                set full_ns = greatest(t.full_ns, from_ns) + there * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
                where t.key = _key and t.limiter = _limiter and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
                    and t.full_ns = seen[1] and t.at_ns = seen[3]
                returning array[t.at_ns, there, t.full_ns, t.token_ns, t.at_ns, 0, coalesce(ends_ns, 0)] into result;
            end if;
        end if;
    end if;
    if result is null then
        result := pglimit.token_bucket_decide_one(_key, _limiter, _token_ns, _window_ns, want, unit, 0, null, _calendar);
    elsif result[2] > 0 and pglimit.clock_ns() > result[1] + 10000000 then -- 10 ms
        -- The write may have waited for a call that changed nothing in the end. Then the grant is dated too early: tokens
        -- refilled during the wait would come on top of it. So it is dated later, and of these tokens come what it lacks.
        -- If the calendar window has ended meanwhile, the grant is of the next one.
        now_ns := pglimit.clock_ns();
        if _calendar is null then
            result[3] := greatest(result[3], now_ns + result[2] * _token_ns);
            there := least(want - result[2], (now_ns + _window_ns - result[3]) / _token_ns) / unit * unit;
            from_ns := result[3] + there * _token_ns; -- see token_bucket_decide_one
            update pglimit.token_bucket t set full_ns = from_ns, at_ns = now_ns
            where t.key = _key and t.limiter = _limiter
            returning array[t.at_ns, result[2] + there, t.full_ns, t.token_ns, t.at_ns, 0, 0] into result;
        elsif now_ns >= ends_ns then
            ends_ns := pglimit.window_end_ns(_calendar, now_ns);
            from_ns := ends_ns + result[2];
            update pglimit.token_bucket t set full_ns = from_ns, at_ns = now_ns, until_ns = ends_ns
            where t.key = _key and t.limiter = _limiter
            returning array[t.at_ns, result[2], t.full_ns, t.token_ns, t.at_ns, 0, t.until_ns] into result;
        end if;
    end if;
    return case when rule is null then result else pglimit.token_bucket_block(_key, _limiter, _token_ns, rule, result, _calendar) end;
end
$$;

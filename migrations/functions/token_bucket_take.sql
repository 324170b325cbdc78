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

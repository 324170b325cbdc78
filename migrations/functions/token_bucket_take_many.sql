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

-- Takes for groups of requests, in their order. A group gets all that it asks for, or nothing. All
-- are dated by one reading of the clock.
--
-- _keys, _limiters, _tokens_ns, _windows_ns: the buckets, as for token_bucket_take_many, each with a
-- request at least.
-- members, asks: for each request its bucket's number, and how many tokens. Group i has the requests
-- lasts[i - 1] + 1 to lasts[i], for different buckets.
--
-- It first looks without a lock. If all buckets have enough, all groups are granted. Otherwise it
-- plans which are; if none is, it locks and writes nothing. Then:
--
-- If locked is false, it takes what was planned as token_bucket_take_many does: it updates rows in
-- order, each if the tokens are still there once it is locked, then inserts missing rows, in order.
-- It gives up, and has taken nothing, with SQLSTATE 40001 if a bucket has changed meanwhile or is
-- named twice, its row is ahead of the clock, the clock stepped back, or 100 ms have passed.
--
-- If locked is true, it locks the rows of all buckets first, in order, inserts those that are
-- missing, and then looks and plans once more. Nobody can be faster, so it gives up only if a bucket
-- is named twice, with 40001 too.
--
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds a row; after 1 ms if
-- another call is making a row and this one has updated rows. Changes lock_timeout until the
-- transaction ends. If locked is false, it must be true.
--
-- now_ns: the time of the decisions. granted: one element per group. numbers, fulls, ats, leases: as
-- of token_bucket_take_many. untouched: six numbers, as of its denied, for each bucket from which
-- nothing was taken. All other buckets have a new row, which is full at now_ns + the price of what
-- was taken.
create or replace function pglimit.token_bucket_take_groups(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], lasts bigint[], members bigint[], asks bigint[], locked boolean, impatient boolean,
    out now_ns bigint, out granted boolean[], out numbers bigint[], out fulls bigint[], out ats bigint[], out leases bigint[], out untouched bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of call and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    sums bigint[] := array_fill(0::bigint, array[coalesce(n, 0)]); -- what all groups together ask of each bucket
    takes bigint[]; -- from each bucket
    there bigint[]; -- in each bucket; null: all groups are granted
    ahead boolean;
    missing int; -- rows that have to be inserted
    made int := 0;
begin
    if (n > 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n)
        and 0 < all (_tokens_ns) and 6400000000000000000 >= all (_windows_ns)
        and lasts[cardinality(lasts)] = cardinality(asks) and 0 <= all (lasts) and cardinality(asks) >= all (lasts)
        and cardinality(asks) = cardinality(members) and 1 <= all (members) and n >= all (members) and 0 < all (asks) and (locked or impatient)) is not true then
        raise exception 'token_bucket_take_groups: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    for i in 1 .. cardinality(asks) loop
        sums[members[i]] := sums[members[i]] + least(asks[i], 9223372036854775807 - sums[members[i]]); -- which is more than any bucket has
    end loop;
    if 0 = any (sums) then
        raise exception 'token_bucket_take_groups: nothing is asked of a bucket' using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    for try in 1 .. 2147483647 loop
        for i in 1 .. case when try > 1 then n else 0 end loop
            perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), coalesce(_tokens_ns[i], _tokens_ns[1]));
        end loop;
        now_ns := pglimit.clock_ns();
        -- First whether all have enough: a plan collects the rows, which takes much longer.
        if not exists (
            select from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, sums) k
            where k.ask > k.window_ns / k.token_ns or exists (
                select from pglimit.token_bucket b
                where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
                    and not pglimit.token_bucket_enough(b, now_ns, k.token_ns, k.window_ns, k.ask)
            )
        ) then
            granted := array_fill(true, array[cardinality(lasts)]);
            takes := sums;
            untouched := null;
            ahead := false;
        else
            select p.now_ns, p.granted, p.takes, p.there, p.untouched, p.ahead into now_ns, granted, takes, there, untouched, ahead
            from pglimit.token_bucket_plan(_keys, _limiters, _tokens_ns, _windows_ns, lasts, members, asks) p;
        end if;
        if true <> all (granted) then
            return;
        end if;
        exit when not locked or try > 1 and not ahead; -- the lock moves a row that is ahead
    end loop;
    there := case when false = any (granted) then there end;

    -- If groups are denied, each bucket must have what it had: no more by a refund, which does not
    -- date the row. And no row may have been written later than now_ns: the decisions would be dated
    -- by it, when the tokens may have come back.
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, k.token_ns), now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, now_ns, k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0 and (locked
            or case
                when there is null then b.at_ns <= now_ns + pglimit.step_ns() and pglimit.token_bucket_there(b, now_ns, k.token_ns, k.window_ns) >= k.ask
                else b.at_ns <= now_ns and pglimit.token_bucket_there(b, now_ns, k.token_ns, k.window_ns) = there[k.number]
            end
            and pglimit.clock_ns() <= now_ns + 100000000) -- later than that this fails below: lock no more rows
        returning k.number, b.full_ns, b.at_ns, b.leased_ns, b.until_ns
    )
    select coalesce(array_agg(u.number), '{}'), array_agg(u.full_ns), array_agg(u.at_ns),
        array_agg(array[u.number, u.leased_ns, u.until_ns]) filter (where u.leased_ns > 0)
    into numbers, fulls, ats, leases
    from updates u;

    missing := n - cardinality(numbers) - coalesce(cardinality(untouched), 0) / 6;
    if missing > 0 and not locked then
        for i in 1 .. cardinality(numbers) loop
            _keys[numbers[i]] := null; -- this bucket is done
        end loop;
        -- A missing row is locked after the existing rows, which is not the order of the keys: if no
        -- call gave up, two calls could wait for each other.
        perform pg_catalog.set_config('lock_timeout', case when numbers = '{}' then '20ms' else '1ms' end, true);
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select k.key, k.limiter, now_ns + k.ask * k.token_ns, k.token_ns, now_ns
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where k.ask > 0
            -- A row that is there was not updated: this fails below, and need not wait for who holds it.
            and not exists (select from pglimit.token_bucket b where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter)
        order by k.number
        on conflict do nothing;
        get diagnostics made = row_count;
    end if;
    if missing > made or not locked and pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a bucket has changed meanwhile, or is held or named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
    end if;
end
$$;

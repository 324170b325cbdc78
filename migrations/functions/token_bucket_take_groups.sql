-- Takes for groups of requests, in their order. A group gets all that it asks for, or nothing. All
-- are dated by one reading of the clock.
--
-- _keys, _limiters, _tokens_ns, _windows_ns: the buckets, as for token_bucket_take_many, each with a
-- request at least.
-- members, asks: for each request its bucket's number, and how many tokens. Group i has the requests
-- lasts[i - 1] + 1 to lasts[i], for different buckets.
-- sums: what all of them ask of each bucket, or one number for all buckets. This is not checked.
--
-- It first looks without a lock. If all buckets have enough, all groups are granted. Otherwise it
-- plans which are (token_bucket_plan); if none is, it locks and writes nothing.
--
-- If lock_first is false, it takes as token_bucket_take_many does: it updates rows in order, each if
-- the tokens are still there once it is locked, then inserts missing rows, in order. It gives up, and
-- has taken nothing, with SQLSTATE 40001 if a bucket that it takes from has changed meanwhile or is
-- named twice, its row is ahead of the clock, the clock stepped back, or 100 ms have passed.
--
-- If lock_first is true, the plan locks the rows of all buckets, in order, unless it grants nothing.
-- It inserts those that are missing, also for groups that it denies. Nobody can be faster, so the
-- call gives up only if a bucket is named twice, with 40001 too.
--
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds a row; after 1 ms if
-- another call is making a row and this one has updated rows. Changes lock_timeout until the
-- transaction ends. If lock_first is false, it must be true.
--
-- now_ns: the time of the decisions. granted: one element per group. rows: for each bucket that was
-- updated, or from which nothing was taken, six numbers: its number, and full_ns, token_ns, at_ns,
-- leased_ns and until_ns of its row (0: null, or there is no row). All other buckets have a new row,
-- which is full at now_ns + the price of what was taken.
create or replace function pglimit.token_bucket_take_groups(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], sums bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean, impatient boolean,
    out now_ns bigint, out granted boolean[], out rows bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of call and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    takes bigint[]; -- from each bucket
    there bigint[]; -- in each bucket, by the plan; null: there was no plan
    untouched bigint[]; -- of rows, those from which nothing is taken
    updated int;
    missing int; -- rows that have to be inserted
    made int := 0;
begin
    if (n > 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(sums) in (1, n)
        and 0 < all (sums) and 0 < all (_tokens_ns) and 6400000000000000000 >= all (_windows_ns)
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
    if lock_first or exists (
        select from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, sums) k
        where k.ask > k.window_ns / k.token_ns or exists (
            select from pglimit.token_bucket b
            where b.key = k.key and b.limiter = k.limiter and not pglimit.token_bucket_enough(b, now_ns, k.token_ns, k.window_ns, k.ask)
            offset 0 -- keeps this a look for each bucket
        )
    ) then
        select p.now_ns, p.granted, p.takes, p.there, p.untouched into now_ns, granted, takes, there, untouched
        from pglimit.token_bucket_plan(_keys, _limiters, _tokens_ns, _windows_ns, lasts, members, asks, lock_first) p;
        if 0 = all (takes) then
            rows := untouched;
            return;
        end if;
    else
        granted := array_fill(true, array[cardinality(lasts)]);
        takes := sums;
    end if;

    -- Of a plan, neither less may be there, nor more.
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), k.token_ns), b.at_ns, now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0 and (lock_first
            or b.at_ns <= now_ns + pglimit.step_ns() and case
                when there is null then pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
                else pglimit.token_bucket_there(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns) = there[k.number]
            end
            and pglimit.clock_ns() <= now_ns + 100000000) -- later than that this fails below: lock no more rows
        returning array[k.number, b.full_ns, b.token_ns, b.at_ns, coalesce(b.leased_ns, 0), coalesce(b.until_ns, 0)] as "row"
    )
    select coalesce(array_agg(u."row"), '{}') into rows from updates u;
    updated := cardinality(rows) / 6;
    rows := rows || untouched;

    missing := n - cardinality(rows) / 6;
    if missing > 0 and not lock_first then
        for i in 1 .. updated loop
            _keys[rows[i][1]] := null; -- this bucket is done
        end loop;
        -- A missing row is locked after the existing rows, which is not the order of the keys: if no
        -- call gave up, two calls could wait for each other.
        perform pg_catalog.set_config('lock_timeout', case when updated = 0 then '20ms' else '1ms' end, true);
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select k.key, k.limiter, now_ns + k.ask * k.token_ns, k.token_ns, now_ns
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where k.ask > 0 and (there is null or there[k.number] = k.window_ns / k.token_ns) -- else the row went, by a reset
            -- A row that is there was not updated: this fails below, and need not wait for who holds it.
            and not exists (select from pglimit.token_bucket b where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter)
        order by k.number
        on conflict do nothing;
        get diagnostics made = row_count;
    end if;
    if missing > made or not lock_first and pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a bucket has changed meanwhile, or is held or named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
    end if;
end
$$;

-- Takes for groups of requests, in their order. A group gets all that it asks for, or nothing. As of
-- one reading of the clock, or as of the last write of a row if that is later.
--
-- _keys, _limiters, _tokens_ns, _windows_ns: the buckets, as for token_bucket_take_many, each with a
-- request at least.
-- members, asks: for each request its bucket's number, and how many tokens. Group i has the requests
-- lasts[i - 1] + 1 to lasts[i], for different buckets.
-- sums: what all of them ask of each bucket, or one number for all buckets. This is not checked.
--
-- If a look finds that all buckets are the usual case of token_bucket_take_many (there is a row with the
-- same price, no lease, and enough for all), all groups are granted, by the same update. Otherwise
-- token_bucket_plan decides which are, and locks the rows that it takes from, in order. If its look finds
-- none, it locks and writes nothing.
--
-- lock_first: instead locks the rows of all buckets, in order, and inserts those that are missing, also
-- for groups that it denies (unless it can grant nothing). Nobody can be faster. Any other call may give
-- up, and has taken nothing, with SQLSTATE 40001.
--
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds a row. Changes lock_timeout
-- until the transaction ends. If lock_first is false, impatient must be true.
--
-- now_ns: the time of the decisions. granted: one element per group. usual, rest: as of
-- token_bucket_take_many.
create or replace function pglimit.token_bucket_take_groups(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], sums bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean, impatient boolean,
    out now_ns bigint, out granted boolean[], out usual bigint[], out rest bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of call and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    all_usual boolean; -- all buckets are, by the look
    takes bigint[]; -- from each bucket
begin
    if (n > 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(sums) in (1, n)
        and 0 < all (sums) and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and 6400000000000000000 >= all (_windows_ns)
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
    if not lock_first and pg_catalog.current_setting('transaction_read_only') = 'off' then -- else it can only deny
        with asked as materialized (
            select * from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, sums)
        ), look as materialized (
            select not exists (
                select from asked k
                where k.ask > k.window_ns / k.token_ns or not exists (
                    select from pglimit.token_bucket b
                    where b.key = k.key and b.limiter = k.limiter
                        and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
                    offset 0 -- keeps this a look for each bucket
                )
            ) as all_usual
        ), updates as (
            update pglimit.token_bucket b
            set full_ns = greatest(b.full_ns, b.at_ns, now_ns) + k.ask * k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null
            from asked k
            where (select l.all_usual from look l) and b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
                and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
                and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
            returning array[k.number, b.full_ns, b.at_ns] as "row"
        )
        select coalesce(array_agg(u."row"), '{}'), (select l.all_usual from look l) into usual, all_usual from updates u;
    end if;
    if all_usual then
        granted := array_fill(true, array[cardinality(lasts)]);
        if cardinality(usual) < 3 * n or pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
            raise exception 'pglimit: a bucket has changed meanwhile, or was held' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
        end if;
        return;
    end if;

    select p.now_ns, p.granted, p.takes, p.untouched into now_ns, granted, takes, rest
    from pglimit.token_bucket_plan(_keys, _limiters, _tokens_ns, _windows_ns, lasts, members, asks, lock_first) p;
    if 0 = all (takes) then
        return;
    end if;
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), k.token_ns), b.at_ns, now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, takes) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0
        returning array[k.number, k.ask, b.full_ns, b.token_ns, b.at_ns, coalesce(b.leased_ns, 0), coalesce(b.until_ns, 0)] as "row"
    )
    select array_agg(u."row") || rest into rest from updates u;
    if cardinality(rest) < 7 * n then
        raise exception 'pglimit: a bucket is named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken.';
    end if;
end
$$;

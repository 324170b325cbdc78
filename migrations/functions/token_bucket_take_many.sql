-- Takes from many buckets in one call, all dated by one reading of the clock. It updates the rows
-- that can grant, inserts missing rows, and returns the rows of the denied buckets.
--
-- _keys; _limiters, _tokens_ns, _windows_ns: as for token_bucket_take, with an element for each
-- bucket; all but _keys may have one element for all buckets. Buckets are distinct, and in the
-- bytewise order of key and limiter.
-- asks, likewise: tokens, all or nothing; 0 is a peek. -1: several requests ask for the bucket, or one
-- asks for as much as there is. For bucket i these requests are the elements lasts[i - 1] + 1 to
-- lasts[i] of wants and units, and a look plans how much they get. (All three are null if no ask is -1;
-- else asks has an element for each bucket.)
-- aheads_ns: as for token_bucket_take, with an element for each of these requests, or null. (A bucket
-- with such a request has the ask -1.)
--
-- Locks the rows that it updates, in order, then the rows that it inserts, in order. A denial
-- locks nothing, unless another call took the tokens while this call waited for the row.
--
-- Gives up, and has taken nothing, with SQLSTATE 40001 if a bucket has changed meanwhile or is
-- named twice, its row is ahead of the clock, the clock stepped back, or 100 ms have passed since
-- now_ns; with 55P03 if another call held a row for 20 ms, or did not commit a missing row in
-- 20 ms (1 ms if this call has updated rows). Then call once more, or ask for each bucket by itself.
--
-- grants: tokens granted to each bucket (null: as many as asked for); wrong for denied buckets.
-- numbers: the buckets whose rows were updated, in order. fulls, ats: the new values of these rows.
-- leases: three numbers for each of these rows that has a lease: its bucket, leased_ns, until_ns.
-- denied: six numbers for each bucket that granted nothing: its number, and full_ns, token_ns,
-- at_ns, leased_ns and until_ns of its row (0: null, or there is no row).
-- All other buckets have a new row, which is full at now_ns + the price of what was granted.
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[],
    out now_ns bigint, out grants bigint[], out numbers bigint[], out fulls bigint[], out ats bigint[], out leases bigint[], out denied bigint[]
)
language plpgsql
set search_path = ''
set lock_timeout = '20ms'
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of batch and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    number bigint;
    granted bigint;
    changed boolean;
begin
    if (n >= 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and -1 <= all (asks) and 0 < all (_tokens_ns) and 6400000000000000000 >= all (_windows_ns)
        and (-1 <> all (asks) or cardinality(asks) = n and cardinality(lasts) = n)) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    now_ns := pglimit.clock_ns();
    if -1 = any (asks) then
        -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
        -- REINDEX.
        lock table pglimit.token_bucket in row exclusive mode;
        grants := asks;
        for number, granted in
            select k.number, k.granted
            from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns) k
            where asks[k.number] = -1
        loop
            grants[number] := granted;
        end loop;
    end if;

    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), k.token_ns), b.at_ns, now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, coalesce(grants, asks)) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0 and b.at_ns <= now_ns + pglimit.step_ns()
            -- Of a plan, neither less may be there, nor more.
            and case
                when coalesce(asks[k.number], asks[1]) >= 0 then pglimit.token_bucket_there(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns) >= k.ask
                else pglimit.in_turn(
                    pglimit.token_bucket_free_ns(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns),
                    pglimit.token_bucket_room_ns(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns), k.token_ns,
                    wants, units, aheads_ns, coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number]) = k.ask
            end
            and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
        returning k.number, b.full_ns, b.at_ns, b.leased_ns, b.until_ns
    )
    select coalesce(array_agg(u.number), '{}'), array_agg(u.full_ns), array_agg(u.at_ns),
        array_agg(array[u.number, u.leased_ns, u.until_ns]) filter (where u.leased_ns > 0)
    into numbers, fulls, ats, leases
    from updates u;

    if cardinality(numbers) < n then
        for i in 1 .. cardinality(numbers) loop
            _keys[numbers[i]] := null; -- this bucket is done
        end loop;
        -- A missing row is locked after the existing rows, which is not the order of the keys: if no
        -- call gave up, two calls could wait for each other.
        perform pg_catalog.set_config('lock_timeout', case when numbers = '{}' then '20ms' else '1ms' end, true);
        with rest as (
            select * from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns)
        ), made as (
            insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
            select r.key, r.limiter, now_ns + r.granted * r.token_ns, r.token_ns, now_ns
            from rest r
            where (r."row").key is null and r.granted > 0 and r.granted = coalesce(grants[r.number], r.granted)
            order by r.number
            on conflict do nothing
            returning 1
        )
        select count(*) filter (where r.granted > 0) > (select count(*) from made)
                -- A peek writes nothing, so one of a row that is ahead even now is answered: the clock stepped back.
                or bool_or((r."row").at_ns > now_ns + pglimit.step_ns()
                    and (coalesce(asks[r.number], asks[1]) <> 0 or (r."row").at_ns <= pglimit.clock_ns() + pglimit.step_ns())),
            array_agg(array_replace(array[
                r.number, (r."row").full_ns, (r."row").token_ns, (r."row").at_ns, (r."row").leased_ns, (r."row").until_ns
            ], null, 0::bigint)) filter (where r.granted = 0)
        into changed, denied
        from rest r;
    end if;
    if changed or pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a bucket has changed meanwhile, or is held or named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
end
$$;

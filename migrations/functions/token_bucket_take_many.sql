-- Takes from many buckets in one call, as of one reading of the clock, or as of the last write of a row
-- if that is later.
--
-- _keys; _limiters, _tokens_ns, _windows_ns: as for token_bucket_take, with an element for each
-- bucket; all but _keys may have one element for all buckets. Buckets are distinct, and in the
-- bytewise order of key and limiter. (One that is named twice is charged twice, or the call fails.)
-- asks, likewise: how many tokens; 0 is a peek.
-- lasts, wants, units: if they are null, each bucket grants all that is asked, or nothing. Else the
-- requests for bucket i are the elements lasts[i - 1] + 1 to lasts[i] of wants and units; asks are their
-- sums, in whole units (which is not checked). If a bucket does not have so much, they get what is there, in turn.
-- aheads_ns: as for token_bucket_take, likewise.
--
-- The usual case is one update, of the rows with the same price, no lease, and enough for all, in order.
-- A row that does not have enough is not locked, and what is locked is checked again. All other buckets
-- are for token_bucket_take_rest.
--
-- Gives up, and has taken nothing, with SQLSTATE 40001 if a bucket has changed meanwhile, its row is
-- ahead of the clock, the clock stepped back, or 100 ms have passed since now_ns, and if another call
-- holds a row of the rest; with 55P03 if it held one of the usual case for 20 ms, or inserts one that is
-- missing. Then call once more, or ask for each bucket by itself.
--
-- usual: three numbers for each bucket of the usual case: its number, full_ns and at_ns of its row.
-- rest: seven numbers for each other bucket: its number, the tokens granted, and full_ns, token_ns,
-- at_ns, leased_ns and until_ns of its row (0: null, or there is no row).
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[],
    out now_ns bigint, out usual bigint[], out rest bigint[]
)
language plpgsql
set search_path = ''
set lock_timeout = '20ms'
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of batch and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
begin
    if (n >= 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and 0 <= all (asks) and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and 6400000000000000000 >= all (_windows_ns)
        and (lasts is null and wants is null and units is null and aheads_ns is null
            or cardinality(lasts) = n and lasts[n] = cardinality(wants) and cardinality(wants) = cardinality(units) and cardinality(wants) = cardinality(coalesce(aheads_ns, wants)))) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    now_ns := pglimit.clock_ns();
    -- It takes the lock that a write takes, before anything is read (see token_bucket_take).
    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(b.full_ns, b.at_ns, now_ns) + k.ask * k.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask between 1 and k.window_ns / k.token_ns
            and b.at_ns <= pglimit.clock_ns() + pglimit.step_ns() and pglimit.token_bucket_enough(b, greatest(b.at_ns, now_ns), k.token_ns, k.window_ns, k.ask)
            and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
        returning array[k.number, b.full_ns, b.at_ns] as "row"
    )
    select coalesce(array_agg(u."row"), '{}') into usual from updates u;

    if cardinality(usual) < 3 * n then
        rest := pglimit.token_bucket_take_rest(_keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns, now_ns, usual);
    end if;
    if pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a row was held, or the clock stepped back' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
end
$$;

-- Plans which groups of requests are granted, as of now_ns: see token_bucket_take_groups for the
-- parameters and results.
--
-- It looks without a lock. If lock_first is true and a group can be granted, it locks all rows, in
-- order, inserts those that are missing, and plans again. (If that plan grants nothing, the new rows
-- stay.)
--
-- takes: from each bucket, how many tokens the plan takes. there: how many each has. A bucket whose
-- row is ahead of the clock counts as full: the row has to be locked, and corrected, before it can
-- deny.
--
-- Must be called with enable_seqscan off, and with the lock on the table that a write takes.
create or replace function pglimit.token_bucket_plan(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean,
    out now_ns bigint, out granted boolean[], out takes bigint[], out there bigint[], out untouched bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    rows pglimit.token_bucket[];
    bucket pglimit.token_bucket; -- one of them
    held boolean := false; -- the rows are locked
    ahead boolean;
begin
    if (lasts[cardinality(lasts)] = cardinality(asks) and 0 <= all (lasts) and cardinality(asks) >= all (lasts)
        and cardinality(asks) = cardinality(members) and 1 <= all (members) and cardinality(_keys) >= all (members) and 0 < all (asks)) is not true then
        raise exception 'token_bucket_plan: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    loop
        if held then
            for i in 1 .. cardinality(_keys) loop
                rows[i] := pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), coalesce(_tokens_ns[i], _tokens_ns[1]));
            end loop;
        else
            rows := array(
                select b
                from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, null) k
                left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
                order by k.number);
        end if;
        now_ns := pglimit.clock_ns(); -- behind the look: an older time would date a denial before grants that it counts
        ahead := false;
        for i in 1 .. cardinality(_keys) loop
            bucket := rows[i];
            if bucket.at_ns > now_ns + pglimit.step_ns() then
                ahead := true;
                there[i] := coalesce(_windows_ns[i], _windows_ns[1]) / coalesce(_tokens_ns[i], _tokens_ns[1]);
            else
                there[i] := pglimit.token_bucket_there(bucket, greatest(now_ns, bucket.at_ns), coalesce(_tokens_ns[i], _tokens_ns[1]), coalesce(_windows_ns[i], _windows_ns[1]));
            end if;
        end loop;
        select p.granted, p.takes into granted, takes from pglimit.all_or_nothing(there, lasts, members, asks) p;
        exit when not lock_first or 0 = all (takes) or held and not ahead; -- the lock moves a row that is ahead
        held := true;
    end loop;
    for i in 1 .. cardinality(_keys) loop
        if takes[i] = 0 then
            bucket := rows[i];
            untouched := untouched || array[array_replace(array[i, bucket.full_ns, bucket.token_ns, bucket.at_ns, bucket.leased_ns, bucket.until_ns], null, 0::bigint)];
        end if;
    end loop;
end
$$;

-- Decides which groups of requests are granted, as of now_ns, and locks the rows that they take from:
-- see token_bucket_take_groups for the parameters and results.
--
-- It looks without a lock. If a group can be granted, it locks the rows that the groups take from (or,
-- if lock_first is true, all rows), in order, inserts those that are missing, looks once more, and
-- decides again. Only a group that is granted then, but was not before, may need a row that is not
-- locked: that fails with SQLSTATE 40001.
--
-- takes: from each bucket, how many tokens the groups take. untouched: seven numbers, as of
-- token_bucket_take_many, for each bucket from which they take none. A bucket whose row is ahead of
-- the clock counts as full: its row denies nothing before it is locked, and corrected.
--
-- Must be called with enable_seqscan off, and with the lock on the table that a write takes.
create or replace function pglimit.token_bucket_plan(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], lasts bigint[], members bigint[], asks bigint[], lock_first boolean,
    out now_ns bigint, out granted boolean[], out takes bigint[], out untouched bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    n constant int := cardinality(_keys);
    rows pglimit.token_bucket[];
    bucket pglimit.token_bucket; -- one of them
    there bigint[]; -- tokens in each bucket
    locked boolean[] := array_fill(false, array[n]);
begin
    if (lasts[cardinality(lasts)] = cardinality(asks) and 0 <= all (lasts) and cardinality(asks) >= all (lasts)
        and cardinality(asks) = cardinality(members) and 1 <= all (members) and n >= all (members) and 0 < all (asks)) is not true then
        raise exception 'token_bucket_plan: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    for try in 1 .. 2 loop
        for i in 1 .. case when try = 1 then 0 else n end loop
            if lock_first or takes[i] > 0 then
                perform pglimit.token_bucket_lock(_keys[i], coalesce(_limiters[i], _limiters[1]), coalesce(_tokens_ns[i], _tokens_ns[1]));
                locked[i] := true;
            end if;
        end loop;
        rows := array(
            select b
            from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, null) k
            left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
            order by k.number);
        now_ns := pglimit.clock_ns(); -- behind the look: an older time would date a denial before grants that it counts
        for i in 1 .. n loop
            bucket := rows[i];
            if bucket.at_ns > now_ns + pglimit.step_ns() and not locked[i] then
                there[i] := coalesce(_windows_ns[i], _windows_ns[1]) / coalesce(_tokens_ns[i], _tokens_ns[1]);
            else
                there[i] := pglimit.token_bucket_there(bucket, greatest(now_ns, bucket.at_ns), coalesce(_tokens_ns[i], _tokens_ns[1]), coalesce(_windows_ns[i], _windows_ns[1]));
            end if;
        end loop;
        select p.granted, p.takes into granted, takes from pglimit.all_or_nothing(there, lasts, members, asks) p;
        exit when 0 = all (takes);
    end loop;
    for i in 1 .. n loop
        if takes[i] = 0 then
            bucket := rows[i];
            untouched := untouched || array[array_replace(array[i, 0, bucket.full_ns, bucket.token_ns, bucket.at_ns, bucket.leased_ns, bucket.until_ns], null, 0::bigint)];
        elsif not locked[i] then
            raise exception 'pglimit: a bucket has changed meanwhile' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each group by itself.';
        end if;
    end loop;
end
$$;

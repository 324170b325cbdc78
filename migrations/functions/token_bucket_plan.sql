-- Looks at buckets, and plans which groups of requests are granted: see token_bucket_take_groups for
-- the parameters and results. Locks nothing.
--
-- takes: from each bucket, how many tokens the plan takes. there: how many each has. ahead: a row is
-- ahead of the clock. The plan has its bucket as full: the row has to be locked, and corrected,
-- before it can deny.
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_plan(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], lasts bigint[], members bigint[], asks bigint[],
    out now_ns bigint, out granted boolean[], out takes bigint[], out there bigint[], out untouched bigint[], out ahead boolean
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    rows pglimit.token_bucket[];
begin
    rows := array(
        select b
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, null) k
        left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
        order by k.number);
    now_ns := pglimit.clock_ns(); -- behind the look: an older time would date a denial before grants that it counts
    ahead := false;
    for i in 1 .. cardinality(_keys) loop
        if (rows[i]).at_ns > now_ns + pglimit.step_ns() then
            ahead := true;
            there[i] := coalesce(_windows_ns[i], _windows_ns[1]) / coalesce(_tokens_ns[i], _tokens_ns[1]);
        else
            there[i] := pglimit.token_bucket_there(rows[i], greatest(now_ns, (rows[i]).at_ns), coalesce(_tokens_ns[i], _tokens_ns[1]), coalesce(_windows_ns[i], _windows_ns[1]));
        end if;
    end loop;
    select p.granted, p.takes into granted, takes from pglimit.all_or_nothing(there, lasts, members, asks) p;
    for i in 1 .. cardinality(_keys) loop
        if takes[i] = 0 then
            untouched := untouched || array_replace(array[i, (rows[i]).full_ns, (rows[i]).token_ns, (rows[i]).at_ns, (rows[i]).leased_ns, (rows[i]).until_ns], null, 0::bigint);
        end if;
    end loop;
end
$$;

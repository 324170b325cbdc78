-- Looks at buckets, and plans which groups of requests are granted: see token_bucket_take_groups for
-- the parameters and results. sums: what all groups together ask of each bucket. Locks nothing.
--
-- now_ns: the clock; read once more unless all buckets have enough. takes: from each bucket, how many
-- tokens the plan takes. there: how many each has; null if all have enough. ahead: a row is ahead of
-- the clock. The plan has its bucket as full: the row has to be locked, and corrected, before it can
-- deny.
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_plan(
    inout now_ns bigint, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], sums bigint[], lasts bigint[], members bigint[], asks bigint[],
    out granted boolean[], out takes bigint[], out there bigint[], out untouched bigint[], out ahead boolean
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    rows pglimit.token_bucket[];
begin
    -- First whether all have enough: to collect the rows takes much longer.
    if not exists (
        select from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, sums) k
        where k.ask > k.window_ns / k.token_ns or exists (
            select from pglimit.token_bucket b
            where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
                and (b.at_ns > now_ns + pglimit.step_ns() or pglimit.token_bucket_there(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns) < k.ask)
        )
    ) then
        granted := array_fill(true, array[cardinality(lasts)]);
        takes := sums;
        ahead := false;
        return;
    end if;
    rows := array(select k."row" from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, sums, null, null, null, null) k order by k.number);
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

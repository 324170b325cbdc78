-- Takes from buckets that are not the usual case of token_bucket_take_many: it has no row, not enough
-- tokens for all, a lease or another price, or only peeks ask for it.
--
-- It looks without a lock, and decides. Then it updates and inserts the rows that grant: updates only
-- rows that are still as they were seen, and that nobody holds. A denial locks and writes nothing.
--
-- _keys to aheads_ns: all buckets, as for token_bucket_take_many.
-- now_ns: the time of the decisions. usual: the buckets that are done, as token_bucket_take_many returns
-- them.
--
-- Rows are locked after those of the usual case, and inserted after that, which is not the order of the
-- keys. So this waits for no row: calls that wait for each other would deadlock. Only if another call
-- inserts a key that is missing here, or takes from it since, it waits for 1 ms at most. Leaves
-- lock_timeout changed: the caller must put it back.
--
-- Fails with SQLSTATE 40001 if a bucket has changed meanwhile, another call holds its row, or the row
-- is ahead of the clock; with 55P03 after that millisecond. Returns seven numbers for each bucket: see
-- token_bucket_take_many.
--
-- Must be called with enable_seqscan off, and with the lock on the table that a write takes.
create or replace function pglimit.token_bucket_take_rest(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[],
    now_ns bigint, usual bigint[]
) returns bigint[]
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
as $$
declare
    changed boolean;
    updated bigint[];
    others bigint[];
begin
    for i in 1 .. cardinality(usual) / 3 loop
        _keys[usual[i][1]] := null; -- this bucket is done
    end loop;
    perform pg_catalog.set_config('lock_timeout', '1ms', true);
    with seen as materialized (
        select * from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units, aheads_ns)
    ), free as materialized (
        select s.number, s.key, s.limiter, s.token_ns, s.granted
        from seen s
        join pglimit.token_bucket b on b.key = any (array[s.key]) and b.limiter between s.limiter and s.limiter and b is not distinct from s."row"
        where s.granted > 0 and (s."row").key is not null -- for the others there is nothing to look for
        for no key update of b skip locked
    ), updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, greatest(b.at_ns, now_ns), s.token_ns), b.at_ns, now_ns) + s.granted * s.token_ns,
            token_ns = s.token_ns, at_ns = greatest(b.at_ns, now_ns), padding = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, greatest(b.at_ns, now_ns), s.token_ns)
        from free s
        where b.key = any (array[s.key]) and b.limiter between s.limiter and s.limiter
        returning array[s.number, s.granted, b.full_ns, b.token_ns, b.at_ns, coalesce(b.leased_ns, 0), coalesce(b.until_ns, 0)] as "row"
    ), inserts as (
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select s.key, s.limiter, now_ns + s.granted * s.token_ns, s.token_ns, now_ns
        from seen s
        where s.granted > 0 and (s."row").key is null
        order by s.number
        on conflict do nothing
        returning 1
    )
    select (select array_agg(u."row") from updates u),
        array_agg(case
            when s.granted > 0 then array[s.number, s.granted, now_ns + s.granted * s.token_ns, s.token_ns, now_ns, 0, 0]
            else array_replace(array[s.number, 0, (s."row").full_ns, (s."row").token_ns, (s."row").at_ns, (s."row").leased_ns, (s."row").until_ns], null, 0::bigint)
        end) filter (where s.granted = 0 or (s."row").key is null),
        count(*) filter (where s.granted > 0) > (select count(*) from updates) + (select count(*) from inserts)
            -- A row that is ahead of the clock has to be locked and moved first, for which the caller asks it alone. A
            -- peek cannot move it, and is answered; but not as of a write that came after now_ns.
            or bool_or(case
                when coalesce(asks[s.number], asks[1]) <> 0 then (s."row").at_ns > pglimit.clock_ns() + pglimit.step_ns()
                else (s."row").at_ns > now_ns + pglimit.step_ns() and (s."row").at_ns <= pglimit.clock_ns() + pglimit.step_ns()
            end)
    into updated, others, changed
    from seen s;
    if changed then
        raise exception 'pglimit: a bucket has changed meanwhile, is held, or is named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
    return updated || others;
end
$$;

-- Takes ask tokens from each of many buckets of one limiter, with one price, which are in one shard. For token_bucket_take_shard.
--
-- Each statement names the keys, so that Citus sends it to their shard as it is. It is planned each time, because Citus
-- has to see the keys, and has no join, which would double the price of that.
--
-- 1. The usual case is one update, in the order of the keys, of the rows with that price, no lease, no pause, and enough.
-- 2. A look denies where that is lacking.
-- 3. Rows that are missing are inserted.
--
-- Behind 1, locks are not in the order of the keys: 2 and 3 wait for a millisecond only, see token_bucket_take_many.
--
-- numbers: which of the keys, in bytewise order. The others: as for token_bucket_take. usual, rest: as of
-- token_bucket_take_many; buckets that are neither in the one nor in the other are to be decided.
create or replace function pglimit.token_bucket_take_alike(
    _keys text[], numbers int[], _limiter text, _token_ns bigint, _window_ns bigint, ask bigint, _calendar text, out usual bigint[], out rest bigint[]
)
language plpgsql set search_path = '' set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
    now_ns bigint := pglimit.clock_ns();
    ends_ns bigint := pglimit.window_end_ns(_calendar, now_ns);
    keys constant text[] := array(select _keys[i] from unnest(numbers) i);
    n constant int := cardinality(keys);
    writable constant boolean := ask between 1 and _window_ns / _token_ns and _window_ns <= pglimit.max_window_ns()
        and pglimit.writable();
    left_over text[] := keys;
    done int := 0;
    written int;
    seen bigint[];
    said text;
begin
    if writable then
        with updates as (
            update pglimit.token_bucket t
            set full_ns = greatest(t.full_ns, t.at_ns, coalesce(ends_ns, now_ns)) + ask * _token_ns, at_ns = greatest(t.at_ns, now_ns), padding = null
            where t.key = any (keys) and t.limiter = _limiter and t.token_ns = _token_ns and t.until_ns is not distinct from ends_ns
                and ask <= (coalesce(ends_ns, greatest(t.at_ns, now_ns)) + _window_ns - greatest(t.full_ns, coalesce(ends_ns, greatest(t.at_ns, now_ns)))) / _token_ns
                and t.at_ns <= now_ns + pglimit.step_ns() and coalesce(t.paused_ns, 0) <= t.at_ns
            returning array[numbers[pg_catalog.width_bucket(t.key, keys)], t.full_ns, t.at_ns, coalesce(ends_ns, 0)] as "row"
        )
        select array_agg(u."row"), count(*) into usual, done from updates u;
        if done > 0 and pglimit.in_time(now_ns) and done = n then
            return;
        end if;
        said := pg_catalog.set_config('lock_timeout', '1ms', true);
        for i in 1 .. done loop
            left_over := array_remove(left_over, _keys[usual[i][1]]); -- it is done
        end loop;
    end if;
    select array_agg(array[numbers[pg_catalog.width_bucket(t.key, keys)], t.full_ns, t.token_ns, t.at_ns, coalesce(t.until_ns, 0), coalesce(t.paused_ns, 0)]) into seen
    from pglimit.token_bucket t where t.key = any (left_over) and t.limiter = _limiter;
    now_ns := pglimit.clock_ns(); -- behind the look: compared with an older time, a new row would be ahead
    ends_ns := pglimit.window_end_ns(_calendar, now_ns);
    for i in 1 .. coalesce(cardinality(seen) / 6, 0) loop
        left_over := array_remove(left_over, _keys[seen[i][1]]);
        if ask > (coalesce(ends_ns, greatest(seen[i][4], now_ns)) + _window_ns - greatest(seen[i][2], coalesce(ends_ns, greatest(seen[i][4], now_ns)))) / _token_ns
            and seen[i][3] = _token_ns and seen[i][5] = coalesce(ends_ns, 0) and seen[i][4] <= now_ns + pglimit.step_ns() and seen[i][6] <= seen[i][4] then
            rest := rest || array[array[seen[i][1], greatest(seen[i][4], now_ns), 0, seen[i][2], _token_ns, seen[i][4], 0, seen[i][5]]];
        end if;
    end loop;
    if writable and left_over <> '{}' then
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, until_ns)
        select u.key, _limiter, coalesce(ends_ns, now_ns) + ask * _token_ns, _token_ns, now_ns, ends_ns
        from unnest(left_over) with ordinality u(key, number)
        order by u.number
        on conflict do nothing;
        get diagnostics written = row_count;
        said := pglimit.in_time(now_ns, written = cardinality(left_over));
        rest := rest || (select array_agg(array[numbers[pg_catalog.width_bucket(u.key collate "C", keys)], now_ns, ask, coalesce(ends_ns, now_ns) + ask * _token_ns, _token_ns, now_ns, 0, coalesce(ends_ns, 0)])
            from unnest(left_over) u(key));
    end if;
end
$$;

-- Returns how many of the tokens that are asked for each of many buckets can grant. A plain read:
-- locks nothing.
--
-- Each row is read as of now_ns, or as of its last write if that is later: the row was written after
-- now_ns was read. If it is ahead of the clock even now, by more than step_ns, the clock has stepped back,
-- and the result for this bucket means nothing.
--
-- Parameters are as for token_bucket_take_many; buckets whose key is null are left out.
-- row: null if the bucket has none.
--
-- A single select, so that the planner inlines it into the statement. There it finds one plan only:
-- for each bucket a look into the primary key. A comparison with any(array[...]) or between can
-- neither be hashed nor merged, and the callers of this function do not allow a scan of the table. (For
-- the limiter, any(array[...]) would not do: up to PostgreSQL 16 a plan may leave it out of the look
-- into the index, and then reads all limiters of a key.)
create or replace function pglimit.token_bucket_look(
    now_ns bigint, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[], aheads_ns bigint[]
)
returns table (number bigint, key text, limiter text, token_ns bigint, granted bigint, "row" pglimit.token_bucket)
language sql stable parallel safe
begin atomic
    select k.number, k.key, k.limiter, k.token_ns,
        case
            when wants is not null then pglimit.in_turn(
                free_ns, pglimit.token_bucket_room_ns(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns), k.token_ns, wants, units, aheads_ns,
                coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number])
            when k.ask <= greatest(0, free_ns) / k.token_ns then k.ask
            else 0
        end,
        b
    from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks) k
    left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
    cross join lateral (select pglimit.token_bucket_free_ns(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns) as free_ns) t;
end;

-- What each of many buckets can grant of what it is asked for, at now_ns or when its row was
-- written if that is later, by some milliseconds: what is read was written before. (If it is later
-- by more, the clock has stepped back, and what this says of the bucket means nothing.) A plain
-- read: locks nothing.
--
-- Parameters as for token_bucket_take_many; done: buckets that are passed over (null: none).
-- row: null if there is none.
--
-- One select, so that the planner puts it into the statement, whose settings leave one plan: for
-- each bucket a look into the primary key. (A comparison with any(array[...]) can neither be
-- hashed nor merged.)
create or replace function pglimit.token_bucket_look(
    now_ns bigint, done boolean[], _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    lasts bigint[], wants bigint[], units bigint[]
)
returns table (number bigint, key text, limiter text, token_ns bigint, granted bigint, "row" pglimit.token_bucket)
language sql stable parallel safe
begin atomic
    select k.number, k.key, k.limiter, k.token_ns,
        case
            when k.ask < 0 then pglimit.in_turn(there, wants, units, coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number])
            when k.ask <= there then k.ask
            else 0
        end,
        b
    from pglimit.token_bucket_asked(done, _keys, _limiters, _tokens_ns, _windows_ns, asks) k
    left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter = k.limiter
    cross join lateral (select pglimit.token_bucket_there(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns) as there) t;
end;

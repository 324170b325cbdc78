-- Returns the buckets of a call for many, numbered from 1. limiters, tokens_ns, windows_ns, asks and ends_ns (null:
-- none has a calendar window) have an element for each key, or one for all. from_ns: the window's end, else now_ns,
-- see tokens_there.
--
-- A single select, so that the planner inlines it. It ends with "offset 0", so that it is read
-- once, in the order of the numbers. Join rows to it by "key = any (array[k.key]) and limiter between k.limiter and
-- k.limiter": that has no other plan than to look for one row after another, so locks are taken in that order.
create or replace function pglimit.token_bucket_asked(
    keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[], ends_ns bigint[],
    now_ns bigint default null
) returns table (
    number bigint, key text, limiter text, token_ns bigint, window_ns bigint, ask bigint, ends_ns bigint, from_ns bigint
)
language sql immutable parallel safe
begin atomic
    select u.number, u.key, coalesce(limiters[u.number], limiters[1]), coalesce(tokens_ns[u.number], tokens_ns[1]),
        coalesce(windows_ns[u.number], windows_ns[1]), coalesce(asks[u.number], asks[1]),
        e.ends_ns, coalesce(e.ends_ns, now_ns)
    from unnest(keys) with ordinality u(key, number)
    cross join lateral (select ends_ns[least(u.number, cardinality(ends_ns))] as ends_ns) e
    offset 0;
end;

-- Dates takes of this transaction anew, which had to wait for a row since they were planned:
-- dated as they were, they would come on top of what may be taken from now on. What could be
-- granted then can be granted now.
--
-- grants: the tokens of each bucket. Returns the rows of those that were granted
-- some, which this transaction has locked.
create or replace function pglimit.token_bucket_date(_keys text[], _limiters text[], _tokens_ns bigint[], grants bigint[], taken_ns bigint)
returns table (number bigint, full_ns bigint, at_ns bigint, leased_ns bigint, until_ns bigint)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- as in token_bucket_update_many
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return query
    update pglimit.token_bucket b
    set full_ns = greatest(b.full_ns - k.ask * k.token_ns, taken_ns) + k.ask * k.token_ns, at_ns = greatest(b.at_ns, taken_ns)
    from pglimit.token_bucket_asked(null, _keys, _limiters, _tokens_ns, null, grants) k
    where b.key = any (array[k.key]) and b.limiter = k.limiter and k.ask > 0
    returning k.number, b.full_ns::bigint, b.at_ns::bigint, b.leased_ns::bigint, b.until_ns::bigint;
end
$$;

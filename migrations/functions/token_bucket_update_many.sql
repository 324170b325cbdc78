-- Takes grants from the buckets whose rows have them, in order, by the clock now_ns. Parameters as
-- for token_bucket_take_many; grants: tokens, 0: none.
--
-- Locks a row only if, as last committed, it has the tokens. If another call holds it, waits,
-- and decides again by the row as it is then; but takes none from it once it is later than
-- late_ns, because others wait for the rows that are locked already.
--
-- numbers: of the buckets whose rows it updated; behind it what has changed in them (leased and
-- untils: null if there are no leases).
create or replace function pglimit.token_bucket_update_many(
    now_ns bigint, late_ns bigint, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], grants bigint[],
    out numbers bigint[], out fulls bigint[], out ats bigint[], out leased bigint[], out untils bigint[]
)
language plpgsql
set search_path = ''
-- One plan, whatever the sizes of batch and table: for each key a look into the primary key.
-- (A comparison with any(array[...]) cannot be joined in another way.)
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with taken as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, k.token_ns), now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
            leased_ns = nullif(pglimit.token_bucket_leased_ns(b, now_ns, k.token_ns), 0)
        from pglimit.token_bucket_asked(null, _keys, _limiters, _tokens_ns, _windows_ns, grants) k
        where b.key = any (array[k.key]) and b.limiter = k.limiter and k.ask > 0 and b.at_ns <= now_ns + pglimit.step_ns()
            and pglimit.token_bucket_there(b, now_ns, k.token_ns, k.window_ns) >= k.ask
            and pglimit.clock_ns() between now_ns - pglimit.step_ns() and late_ns
        returning k.number, b.full_ns, b.at_ns, b.leased_ns, b.until_ns
    )
    select array_agg(t.number), array_agg(t.full_ns), array_agg(t.at_ns),
        case when count(t.leased_ns) > 0 then array_agg(coalesce(t.leased_ns, 0)) end,
        case when count(t.leased_ns) > 0 then array_agg(coalesce(t.until_ns, 0)) end
    into numbers, fulls, ats, leased, untils
    from taken t;
end
$$;

-- What many buckets can grant at now_ns, or when the row was written if that is later (by some
-- milliseconds: a row that is read was written before). A plain read: locks nothing. Parameters as for
-- token_bucket_take_many. done: buckets that are passed over.
--
-- numbers: of the others; grants: what each can grant. denied: numbers of those that can
-- grant nothing; behind it their rows (zeros: none).
create or replace function pglimit.token_bucket_look(
    now_ns bigint, done boolean[], _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    lasts bigint[], wants bigint[], units bigint[],
    out numbers bigint[], out grants bigint[],
    out denied bigint[], out fulls bigint[], out tokens bigint[], out ats bigint[], out leased bigint[], out untils bigint[]
)
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- as in token_bucket_update_many
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    select array_agg(g.number), array_agg(g.granted),
        array_agg(g.number) filter (where g.granted = 0), array_agg(g.full_ns) filter (where g.granted = 0),
        array_agg(g.token_ns) filter (where g.granted = 0), array_agg(g.at_ns) filter (where g.granted = 0),
        array_agg(g.leased_ns) filter (where g.granted = 0), array_agg(g.until_ns) filter (where g.granted = 0)
    into numbers, grants, denied, fulls, tokens, ats, leased, untils
    from (
        select k.number, coalesce(b.full_ns, 0) as full_ns, coalesce(b.token_ns, 0) as token_ns,
            coalesce(b.at_ns, 0) as at_ns, coalesce(b.leased_ns, 0) as leased_ns, coalesce(b.until_ns, 0) as until_ns,
            case
                when k.ask < 0 then pglimit.in_turn(there, wants, units, coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number])
                when k.ask <= there then k.ask
                else 0
            end as granted
        from pglimit.token_bucket_asked(done, _keys, _limiters, _tokens_ns, _windows_ns, asks) k
        left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter = k.limiter
        cross join lateral (select case when b.at_ns <= now_ns + pglimit.step_ns() then greatest(now_ns, b.at_ns) else now_ns end as at_ns) d
        cross join lateral pglimit.token_bucket_there(b, d.at_ns, k.token_ns, k.window_ns) there
        order by k.number
        offset 0
    ) g;
end
$$;

-- Writes what a process has counted, for all its limiters. $1 slot; $2 limiters, $3 keys, $4 how often each was denied,
-- $5 and granted: four arrays in the same order; $6 all limiters, $7 how often each granted, $8 denied, $9 and failed in
-- all: four more; $10 for how many ns the slot was counted. Locks only rows of this slot, which nobody else writes.
insert into pglimit.top_keys
    (limiter, slot, keys, denied, granted, at_ns, since_ns, granted_total, denied_total, failed_total)
select t.limiter, $1::text, coalesce(k.keys, '{}'), coalesce(k.denied, '{}'), coalesce(k.granted, '{}'),
    c.now_ns, greatest(1, c.now_ns - $10::bigint), t.granted, t.denied, t.failed
from (select pglimit.clock_ns() as now_ns offset 0) c
cross join rows from (
    pg_catalog.unnest($6::text[]), pg_catalog.unnest($7::bigint[]),
    pg_catalog.unnest($8::bigint[]), pg_catalog.unnest($9::bigint[])
) t (limiter, granted, denied, failed)
left join (
    select r.limiter, pg_catalog.array_agg(r.key) as keys, pg_catalog.array_agg(r.denied) as denied,
        pg_catalog.array_agg(r.granted) as granted
    from rows from (
        pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]),
        pg_catalog.unnest($4::bigint[]), pg_catalog.unnest($5::bigint[])
    ) r (limiter, key, denied, granted)
    group by r.limiter
) k on k.limiter operator(pg_catalog.=) t.limiter
on conflict (limiter, slot) do update
set keys = excluded.keys, denied = excluded.denied, granted = excluded.granted, at_ns = excluded.at_ns,
    granted_total = excluded.granted_total, denied_total = excluded.denied_total, failed_total = excluded.failed_total

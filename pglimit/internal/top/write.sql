-- Writes what a process has counted, for all its limiters. $1 slot; $2 limiters, $3 keys, $4 how often each was denied,
-- $5 and granted: four arrays in the same order. Locks only rows of this slot, which nobody else writes.
insert into pglimit.top_keys (limiter, slot, keys, denied, granted, at_ns)
select r.limiter, $1::text, pg_catalog.array_agg(r.key), pg_catalog.array_agg(r.denied),
    pg_catalog.array_agg(r.granted), pglimit.clock_ns()
from rows from (
    pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[]),
    pg_catalog.unnest($4::bigint[]), pg_catalog.unnest($5::bigint[])
) r (limiter, key, denied, granted)
group by r.limiter
on conflict (limiter, slot) do update
set keys = excluded.keys, denied = excluded.denied, granted = excluded.granted, at_ns = excluded.at_ns

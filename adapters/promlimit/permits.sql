-- The permits that are held, in all processes, by limiter.
--
-- No parameters. Locks nothing that others wait for. Returns a row for each limiter that has had a holder: its name and
-- the weight of all permits that have not expired. (A clock that stepped back is not looked at: it shows expired ones.)
select p.limiter, coalesce(pg_catalog.sum(h.weight) filter (where h.until_ns operator(pg_catalog.>)
    (extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000000000::numeric)::bigint), 0)::float8
from pglimit.permits p
left join lateral unnest(p.weights, p.until_ns) h (weight, until_ns) on true
group by p.limiter

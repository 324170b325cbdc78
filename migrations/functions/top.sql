-- The keys that were denied and granted, in requests of the last 1, 10 and 60 minutes and up to one more, over all
-- processes that count them. For a person in psql:
--     select key, denied_10m from pglimit.top where limiter = 'api' order by denied_10m desc limit 20;
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.top as
select t.limiter, k.key,
    coalesce(sum(k.denied) filter (where t.at_ns > c.now_ns - c.minute_ns), 0) as denied_1m,
    coalesce(sum(k.denied) filter (where t.at_ns > c.now_ns - 10 * c.minute_ns), 0) as denied_10m,
    coalesce(sum(k.denied), 0) as denied_60m,
    coalesce(sum(k.granted) filter (where t.at_ns > c.now_ns - c.minute_ns), 0) as granted_1m,
    coalesce(sum(k.granted) filter (where t.at_ns > c.now_ns - 10 * c.minute_ns), 0) as granted_10m,
    coalesce(sum(k.granted), 0) as granted_60m
from (select pglimit.clock_ns() as now_ns, 60000000000 as minute_ns offset 0) c
cross join pglimit.top_keys t
cross join unnest(t.keys, t.denied, t.granted) k (key, denied, granted)
where t.at_ns > c.now_ns - 60 * c.minute_ns
group by t.limiter, k.key;

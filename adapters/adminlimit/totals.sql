-- What the 100 busiest limiters counted in the last six minutes, as each process wrote it for each of its minutes, the
-- latest first. Returns the database's clock with each row; one row with an empty limiter if there is none. Locks
-- nothing.
with recent as (
    select limiter, slot, coalesce(since_ns, at_ns - 60000000000) as since_ns, at_ns, granted_total, denied_total, failed_total
    from pglimit.top_keys where at_ns > (select pglimit.clock_ns()) - 360000000000
)
select c.now_ns, coalesce(r.limiter, ''), coalesce(r.slot, ''), coalesce(r.since_ns, 0)::bigint, coalesce(r.at_ns, 0)::bigint,
    coalesce(r.granted_total, 0), coalesce(r.denied_total, 0), coalesce(r.failed_total, 0)
from (select pglimit.clock_ns() as now_ns offset 0) c
left join recent r on r.limiter in (
    select b.limiter from recent b group by b.limiter
    order by sum(b.granted_total + b.denied_total + b.failed_total) desc limit 100)
order by r.at_ns desc nulls last limit 20000

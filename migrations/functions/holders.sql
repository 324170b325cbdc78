-- The permits that are held now, for a person in psql.
create or replace view pglimit.holders as
select p.limiter, p.key, h.holder, h.weight, h.token,
    pglimit.time_of(h.since_ns - p.step_ns) as since, pglimit.time_of(h.until_ns - p.step_ns) as expires_at
from (
    select p.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.permits p
) p
cross join unnest(p.holders, p.tokens, p.weights, p.since_ns, p.until_ns) h (holder, token, weight, since_ns, until_ns)
where h.until_ns - p.step_ns > p.now_ns;

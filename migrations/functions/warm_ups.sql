-- The state of the strategy, for a person in psql. warmth: 0 is cold, 1 is warm.
create or replace view pglimit.warm_ups as
select limiter, key,
    round(least(1, greatest(0, full_ns - greatest(now_ns + step_ns, free_ns)) / period_ns::numeric), 3) as warmth,
    pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(free_ns - step_ns) as free_at,
    pglimit.time_of(full_ns - step_ns) as cold_at
from (
    select w.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.warm_up w
) w;

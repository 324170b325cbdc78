-- The state of these strategies, for a person in psql: the tokens that count now, each by the window under which it was
-- granted, or denied.
create or replace view pglimit.windows as
select strategy, limiter, key, counts.used,
    pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(full_ns - step_ns) as full_at
from (
    select w.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join (
        select 'sliding_window' as strategy, * from pglimit.sliding_window
        union all
        select 'sliding_log', * from pglimit.sliding_log
    ) w
) w
cross join lateral (
    select coalesce(sum(abs(c.used)), 0) as used
    from unnest(w.used, w.last_ns, w.window_ns) c (used, last_ns, window_ns)
    where w.now_ns - (c.last_ns - w.step_ns) < c.window_ns
) counts;

-- The strategy warm_up: after idleness the rate rises from a cold one to that of the limit.

-- +goose Up
-- No row means free and cold.
--
--     full_ns    when it is cold again if nobody takes: its stored permits are as many as there can be then
--     free_ns    when the next request can be granted: the last grant is paid for until then
--     due_ns     since when the last grant has been paid for
--     tokens     of the last grant, less what was given back
--     period_ns  the Period under which it was written: the time from warm to cold
--     at_ns      the date of the last grant, or of the correction after the clock stepped back
create table pglimit.warm_up (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    full_ns   pglimit.nanoseconds not null,
    free_ns   pglimit.nanoseconds not null,
    due_ns    pglimit.nanoseconds not null,
    tokens    bigint not null check (tokens >= 0),
    period_ns pglimit.nanoseconds not null,
    at_ns     pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- The state of the strategy, for a person in psql. warmth: 0 is cold, 1 is warm.
create view pglimit.warm_ups as
select limiter, key, round(least(1, greatest(0, full_ns - step_ns - greatest(now_ns, free_ns - step_ns)) / period_ns::numeric), 3) as warmth,
    pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(free_ns - step_ns) as free_at, pglimit.time_of(full_ns - step_ns) as cold_at
from (
    select w.*, now_ns, case when at_ns > now_ns + pglimit.step_ns() then at_ns - now_ns else 0 end as step_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock cross join pglimit.warm_up w
) w;

-- +goose Down
drop view pglimit.warm_ups;
drop table pglimit.warm_up;

-- The strategies of strict windows: never more than so many in any window of that length.

-- +goose Up
-- sliding_window: a row has the cells of its window, as arrays in the same order. A cell counts until its last grant is
-- a window old, by the window of that grant or of the request, whichever is shorter.
--
--     used       tokens granted in the cell
--     last_ns    when the last of them were granted, in nanoseconds since 1970
--     window_ns  how long the window was under the limit of that grant
--     full_ns    when no cell counts any more
--     at_ns      the date of the last grant, or of the correction after the clock stepped back
create table pglimit.sliding_window (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    used      bigint[] not null,
    last_ns   bigint[] not null,
    window_ns bigint[] not null,
    full_ns   pglimit.nanoseconds not null,
    at_ns     pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50, toast_tuple_target = 8160, -- long arrays stay in the row, uncompressed: an update writes them all
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- sliding_log: the same with a cell for each grant and, where they count, for each denial: of these, used is below 0.
create table pglimit.sliding_log (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    used      bigint[] not null,
    last_ns   bigint[] not null,
    window_ns bigint[] not null,
    full_ns   pglimit.nanoseconds not null,
    at_ns     pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50, toast_tuple_target = 8160, -- long arrays stay in the row, uncompressed: an update writes them all
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- The state of these strategies, for a person in psql: the tokens that count now, each by the window under which it was
-- granted, or denied.
create view pglimit.windows as
select strategy, limiter, key, counts.used, pglimit.time_of(at_ns - step_ns) as last_taken_at, pglimit.time_of(full_ns - step_ns) as full_at
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

-- +goose Down
drop view pglimit.windows;
drop table pglimit.sliding_window, pglimit.sliding_log;

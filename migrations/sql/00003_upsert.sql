-- The strategy upsert: a table like token_bucket's, and what the last take
-- granted, because INSERT ... RETURNING shows the new row only.

-- +goose Up
create table pglimit.upsert (
    key          text collate "C" not null,
    limiter      text collate "C" not null,
    debt         bigint not null,
    at_us        bigint not null,
    granted      bigint not null,
    token_parts  bigint not null,
    refill_parts bigint not null,
    burst        bigint not null,
    primary key (key, limiter)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- +goose Down
drop table pglimit.upsert;

-- When a job that any number of instances offer to do is due next, by the
-- database's clock: the cleanup, and what else uses its lock.

-- +goose Up
create table pglimit.schedule (
    job    text collate "C" primary key,
    ran_at timestamptz not null,
    due_at timestamptz not null
);

-- +goose Down
drop table pglimit.schedule;

-- The tables. A bucket is one number: the time at which it is full again. No row means full.
--
--     full_ns   when it is full again if nobody takes, in nanoseconds since 1970
--     token_ns  the price of a token, in nanoseconds, under the limit of the last write
--     at_ns     the date of the last grant, settlement of a lease, or correction
--
-- The last two are notes. They matter if the limit has changed, if the clock has stepped back,
-- or to a call that read the clock before the last write. functions/read_full_ns.sql and
-- token_bucket_read.sql say what the numbers mean.
--
-- No index but the primary key, so an update is HOT wherever its page has space: it stays in the
-- page and touches no index. The tables are small and change often, so autovacuum comes after
-- 5,000 dead rows plus 2 % of the table, and does not pause. The strategies lock rows and walk
-- pages, so the tables are of Postgres's own kind, whatever default_table_access_method says.
--
-- A transaction that touches several tables goes to them in the order in which they stand here, also
-- if it only reads one of them: what changes all tables (pglimit storage, pglimit migrate down) locks them
-- in this order, and would deadlock with another one.

-- +goose Up
comment on schema pglimit is 'pglimit, a rate limiter: see the view pglimit.buckets';

-- A domain, not a CHECK of each table: every statement that writes would parse the CHECK again,
-- which takes as long as the rest of the statement.
create domain pglimit.nanoseconds as bigint constraint possible check (value > 0);
revoke usage on domain pglimit.nanoseconds from public; -- so that nobody plants operators of it

-- leased_ns: the part of the window that leases set aside until until_ns. Null: there is none.
-- padding: a row is inserted with 39 spaces that its first update removes, which leaves
-- space in the page for later versions of its rows. (If only fillfactor leaves space, Postgres
-- prunes the page at each update.)
create table pglimit.token_bucket (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    full_ns   pglimit.nanoseconds not null,
    token_ns  pglimit.nanoseconds not null,
    at_ns     pglimit.nanoseconds not null,
    leased_ns pglimit.nanoseconds,
    until_ns  pglimit.nanoseconds,
    padding   text collate "C" default '                                       ',
    primary key (key, limiter)
) using heap with (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- What requests with an ID were granted: the numbers that token_bucket_take_once returns again. until_ns:
-- when the ID may be used again; ttl_ns earlier, the row was written.
create table pglimit.token_bucket_answers (
    key      text collate "C" not null,
    limiter  text collate "C" not null,
    id       text collate "C" not null,
    answer   bigint[] not null check (cardinality(answer) = 8 and answer[2] > 0),
    ttl_ns   pglimit.nanoseconds not null,
    until_ns pglimit.nanoseconds not null,
    primary key (key, limiter, id)
) using heap with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- Keys that are denied, and blocked if that happens too often. No row: neither.
--
--     denials    how many in the span that began at since_ns
--     level      how many blocks there were, none forgotten in between
--     until_ns   when the last block ends. Null: there was none
--     forget_ns  when the row no longer means anything
--     at_ns      when the last write was
create table pglimit.token_bucket_blocks (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    denials   bigint not null check (denials >= 0),
    since_ns  pglimit.nanoseconds not null,
    level     bigint not null check (level >= 0),
    until_ns  pglimit.nanoseconds,
    forget_ns pglimit.nanoseconds not null,
    at_ns     pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

create table pglimit.upsert (
    key      text collate "C" not null,
    limiter  text collate "C" not null,
    full_ns  pglimit.nanoseconds not null,
    token_ns pglimit.nanoseconds not null,
    at_ns    pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

create table pglimit.for_update_nowait (
    key      text collate "C" not null,
    limiter  text collate "C" not null,
    full_ns  pglimit.nanoseconds not null,
    token_ns pglimit.nanoseconds not null,
    at_ns    pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000
);

-- When a job is due next, by the database's clock: the cleanup, and other jobs that use its lock.
-- Any number of instances offer to run a job, and one of them does.
create table pglimit.schedule (
    job    text collate "C" primary key,
    ran_at timestamptz not null,
    due_at timestamptz not null
) using heap;

-- Who runs a job now: nobody from until on. The holder renews it. (Not an advisory lock, which any login may take, and keep.)
create table pglimit.job_locks (
    job    text collate "C" primary key,
    holder text collate "C" not null, -- of this run alone
    until  timestamptz not null
) using heap;

-- +goose Down
drop table pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks, pglimit.upsert, pglimit.for_update_nowait, pglimit.schedule, pglimit.job_locks;
drop domain pglimit.nanoseconds;
comment on schema pglimit is null;

-- All tables, but that of exclusion_range. Views and triggers come with the functions, which they need: 00003.
--
-- A bucket is one number, full_ns: the time at which it is full again. No row means full. token_ns and at_ns are notes
-- of the last write. They matter if the limit has changed, if the clock has stepped back, or to a call that read the
-- clock before the last write. functions/read_full_ns.sql and token_bucket_read.sql say what the numbers mean.
--
-- No index but the primary key, so an update is HOT wherever its page has space: it stays in the page and touches no
-- index. The strategies lock rows and walk pages, so the tables are of Postgres's own kind, whatever
-- default_table_access_method says.
--
-- A transaction that touches several tables of strategies goes to them in the order in which they stand here, also if
-- it only reads one of them: what changes all tables (pglimit storage, pglimit migrate down) locks them in this order,
-- and would deadlock with it otherwise.

-- +goose Up
comment on schema pglimit is 'pglimit, a rate limiter: see the view pglimit.buckets';

-- A domain, not a CHECK of each table: every statement that writes would parse the CHECK again, which takes as long as
-- the rest of the statement.
create domain pglimit.nanoseconds as bigint constraint possible check (value > 0); -- since 1970, or of a span
revoke usage on domain pglimit.nanoseconds from public; -- so that nobody plants operators of it

create table pglimit.token_bucket (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    full_ns   pglimit.nanoseconds not null, -- when it is full again if nobody takes
    token_ns  pglimit.nanoseconds not null, -- the price of a token under the limit of the last write
    at_ns     pglimit.nanoseconds not null, -- the date of the last grant, settlement of a lease, or correction
    leased_ns pglimit.nanoseconds, -- the part of the window that leases set aside until until_ns; null: there is none
    until_ns  pglimit.nanoseconds,
    paused_ns pglimit.nanoseconds, -- nothing is granted before; null: it never was paused, or is no more
    -- A row is inserted with 39 spaces that its first update removes, which leaves space in the page for later versions
    -- of its rows. (If only fillfactor leaves space, Postgres prunes the page at each update.)
    padding   text collate "C" default '                                       ',
    primary key (key, limiter)
) using heap with (fillfactor = 90);

-- What requests with an ID were granted.
create table pglimit.token_bucket_answers (
    key      text collate "C" not null,
    limiter  text collate "C" not null,
    id       text collate "C" not null,
    answer   bigint[] not null check (cardinality(answer) = 8 and answer[2] > 0), -- of token_bucket_take_once
    ttl_ns   pglimit.nanoseconds not null, -- the row was written so long before until_ns
    until_ns pglimit.nanoseconds not null, -- when the ID may be used again
    primary key (key, limiter, id)
) using heap;

-- Keys that are denied, and blocked if that happens too often. No row: neither.
create table pglimit.token_bucket_blocks (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    denials   bigint not null check (denials >= 0), -- in the span that began at since_ns
    since_ns  pglimit.nanoseconds not null,
    level     bigint not null check (level >= 0), -- how many blocks there were, none forgotten in between
    until_ns  pglimit.nanoseconds, -- when the last block ends; null: there was none
    forget_ns pglimit.nanoseconds not null, -- when the row no longer means anything
    at_ns     pglimit.nanoseconds not null, -- when the last write was
    primary key (key, limiter)
) using heap with (fillfactor = 50);

create table pglimit.upsert (
    key      text collate "C" not null,
    limiter  text collate "C" not null,
    full_ns  pglimit.nanoseconds not null,
    token_ns pglimit.nanoseconds not null,
    at_ns    pglimit.nanoseconds not null,
    primary key (key, limiter)
) using heap with (fillfactor = 50);

create table pglimit.for_update_nowait (like pglimit.upsert including indexes) using heap with (fillfactor = 50);

-- Never more than so many in any window of that length. A row has the cells of its window, as arrays in the same order.
-- A cell counts until its last grant is a window old, by the window of that grant or of the request, whichever is
-- shorter.
create table pglimit.sliding_window (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    used      bigint[] not null, -- tokens granted in the cell
    last_ns   bigint[] not null, -- when the last of them were granted
    window_ns bigint[] not null, -- how long the window was under the limit of that grant
    full_ns   pglimit.nanoseconds not null, -- when no cell counts any more
    at_ns     pglimit.nanoseconds not null, -- the date of the last grant, or of the correction after a step back
    primary key (key, limiter)
) using heap with (fillfactor = 50, toast_tuple_target = 8160); -- arrays stay in the row: an update writes them all

-- The same with a cell for each grant and, where they count, for each denial: of these, used is below 0.
create table pglimit.sliding_log (like pglimit.sliding_window including indexes)
using heap with (fillfactor = 50, toast_tuple_target = 8160);

-- After idleness the rate rises from a cold one to that of the limit. No row means free and cold.
create table pglimit.warm_up (
    key       text collate "C" not null,
    limiter   text collate "C" not null,
    full_ns   pglimit.nanoseconds not null, -- when it is cold again if nobody takes: it stores all permits then
    free_ns   pglimit.nanoseconds not null, -- when the next request can be granted: the last one is paid for until then
    due_ns    pglimit.nanoseconds not null, -- since when the last grant has been paid for
    tokens    bigint not null check (tokens >= 0), -- of the last grant, less what was given back
    period_ns pglimit.nanoseconds not null, -- the time from warm to cold, under which it was written
    at_ns     pglimit.nanoseconds not null, -- the date of the last grant, or of the correction after a step back
    primary key (key, limiter)
) using heap with (fillfactor = 50);

-- Permits: at most so many places of a key are held at once, by whichever processes. A key is one row, and its holders
-- are arrays in that row. So acquire, renew and release are one update of one row: a call that changes who holds a key
-- holds the row's lock, and nobody sees half of a change.
--
--   - acquire adds a holder only if the weights of all holders in the row, plus its own, are at most the number of
--     places. It sees the row as it is behind its lock. Holders whose permits have expired count until permits_settle
--     takes them out, by a clock that it reads behind the lock. So at no instant of the database's clock do permits
--     that have not expired hold more places than there are.
--   - A clock that was read before a wait for the lock is older than the write. Then a permit expires a little earlier,
--     and nothing else follows. A clock that is more than 10 ms away is refused: it may have stepped back meanwhile.
--   - A holder counts the time of its permit from before the call, and the database from the call. So the holder stops
--     before the place is given away.
--   - The clock stepped back: at_ns is more than 10 ms ahead of the clock. Then every permit has the time that it had
--     at at_ns. The next call writes this, also one that is refused. The clock stepped forward: permits expire earlier.
--   - A token is larger than all tokens of the key before it, and not less than the clock when it was given. So it also
--     grows after the row was swept or lost (unless the clock has stepped back by more than an hour meanwhile).
--   - A refusal is a plain read: it locks and writes nothing.
--
-- Never unlogged: after a crash nobody would know the holders.
create table pglimit.permits (
    key        text collate "C" not null,
    limiter    text collate "C" not null,
    last_token pglimit.nanoseconds not null,
    held       bigint not null, -- the sum of the weights, also of permits that have expired and are still in the row
    at_ns      pglimit.nanoseconds not null, -- when the last permit was given or renewed
    forget_ns  pglimit.nanoseconds not null, -- when the row no longer means anything: an hour after the last permit
    holders    text[] collate "C" not null, -- who holds a permit; the rest is of these, in the same order
    tokens     bigint[] not null,
    weights    bigint[] not null,
    since_ns   bigint[] not null,
    until_ns   bigint[] not null, -- when it expires
    primary key (key, limiter)
) using heap with (fillfactor = 50);

-- +goose StatementBegin
-- These tables are small and change often. So autovacuum comes after 5,000 dead rows plus 2 % of the table, and does
-- not pause.
do $$
declare
    name text;
begin
    foreach name in array '{token_bucket,token_bucket_answers,token_bucket_blocks,upsert,for_update_nowait,
            sliding_window,sliding_log,warm_up,permits}'::text[] loop
        execute format('alter table pglimit.%I set (
            autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
            autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
            autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 5000)', name);
    end loop;
end
$$;
-- +goose StatementEnd

-- The limits, which operators change while services run: with pglimit.set_limit and pglimit.delete_limit, plain
-- statements, "pglimit limits" or in Go. Services read them every second, all at once (pglimit.limits_since);
-- pglimit.allow reads them with each call that names no limit, and pglimit.acquire those with the action places.
--
-- A row is a rule for one key of a limiter, or for the keys that begin with its prefix, or for all keys. Of the rules
-- of a kind that match, the one for the key holds, else the longest prefix, else the one for all. A rule that expires
-- is temporary: it lies over the permanent one for the same keys, which holds again when it ends, is disabled or goes.
--
-- A change locks the table limits_history first, until the commit. So one transaction changes limits at a time, and the
-- last id of the history is the version of the limits. Nobody who decides locks or waits for anything here.
--
-- Plain statements say who changes limits, and why they delete, or update without a note, by two settings:
--     set local pglimit.by = 'ann'; set local pglimit.note = 'ticket 7'; delete from pglimit.limits where id = 7;
create table pglimit.limits (
    id         bigint generated always as identity primary key,
    limiter    text collate "C", -- null: all, to switch them off
    key        text collate "C",
    prefix     text collate "C" check (octet_length(prefix) between 1 and 1024),
    action     text collate "C" not null default 'enforce'
        check (action in ('enforce', 'observe', 'allow', 'deny', 'off', 'places')),
    -- A limiter can have a rule of each kind for the same keys.
    kind       text collate "C" not null
        generated always as (case when action in ('observe', 'off', 'places') then action else 'live' end) stored,
    limit_text text collate "C",
    max_wait   text collate "C",
    note       text not null check (note ~ '[^[:space:]]' and length(note) <= 1000), -- why it was set or changed last
    enabled    boolean not null default true,
    -- By the database's clock; null: never. Any program can read a time in this span.
    expires_at timestamptz check (expires_at between '1970-01-01 00:00+00' and '2262-01-01 00:00+00'),
    temporary  boolean not null generated always as (expires_at is not null) stored,
    changed_by text not null,
    changed_at timestamptz not null,
    -- The trigger limit_changes checks names, limit_text and max_wait.
    constraint a_key_or_a_prefix check (num_nonnulls(key, prefix) <= 1),
    constraint off_is_for_all_keys check (action <> 'off' or num_nonnulls(key, prefix) = 0),
    constraint only_off_is_for_all_limiters check (limiter is not null or action = 'off'),
    constraint a_limit_if_the_action_has_one
        check ((limit_text is not null) = (action in ('enforce', 'observe', 'places'))),
    constraint places_are_a_whole_number check (action <> 'places' or limit_text ~ '^([1-9][0-9]{0,14}|10{15})$'),
    -- "api" is observed in the buckets of "api (observed)".
    constraint observed_names_fit check (action <> 'observe' or octet_length(limiter) <= 117),
    constraint limits_match unique nulls not distinct (limiter, key, prefix, kind, temporary)
) using heap;
create index limits_expire on pglimit.limits (expires_at) where enabled and expires_at is not null;

-- What was changed, when, by whom and why. Only the owner of the schema can write it.
create table pglimit.limits_history (
    id      bigint not null generated always as identity,
    at      timestamptz not null,
    role    text not null, -- who was connected
    by      text not null, -- who said to have done it
    note    text not null, -- why
    limiter text collate "C",
    key     text collate "C",
    prefix  text collate "C",
    before  jsonb, -- the row; null: there was none
    after   jsonb
) using heap;
-- Not unique: a dump of data alone that is restored has the changes that it makes, too.
create index limits_history_id on pglimit.limits_history (id);
alter table pglimit.limits_history replica identity full;

-- Live instances: the processes that run a limiter now and follow the table of limits, by pglimit.instance_lives.
create table pglimit.instances (
    limiter  text collate "C" not null,
    id       text collate "C" not null,
    counts   boolean not null, -- the others; else the next three columns are 0, and the others do not count it
    joined   bigint not null, -- the turn since when it has been live without a gap
    heard    bigint not null, -- the turn of the last answer that it says to have heard; 0: none
    turn     bigint not null, -- of its last call
    until_ns pglimit.nanoseconds not null, -- not live from here on
    primary key (limiter, id)
) using heap with (fillfactor = 50);

-- One row. Not an advisory lock, which any login may take, and keep.
create table pglimit.instances_turn (
    one  boolean primary key default true check (one),
    turn bigint not null -- of the last call
) using heap with (fillfactor = 50);

-- Which keys each process denied and granted most, in some minute, and how often it granted, denied and failed in all: a
-- row per limiter, that the process writes again each few seconds until the next minute's. So no two processes write the
-- same row. An hour later the cleanup removes it. See the view top.
create table pglimit.top_keys (
    limiter text collate "C" not null,
    slot    text collate "C" not null, -- of one process, for one minute
    keys    text[] collate "C" not null, -- or their hashes; the next two are of these, in the same order
    denied  bigint[] not null, -- requests
    granted bigint[] not null,
    at_ns   pglimit.nanoseconds not null, -- when it was last written
    since_ns pglimit.nanoseconds, -- when the process began to count into it
    -- Requests of all keys since then, as counted in pglimit.Stats; failed: no decision was known.
    granted_total bigint not null default 0,
    denied_total  bigint not null default 0,
    failed_total  bigint not null default 0,
    primary key (limiter, slot)
) using heap with (fillfactor = 50);

-- When a job is due next, by the database's clock: the cleanup, and other jobs that use its lock. Any number of
-- instances offer to run a job, and one of them does.
create table pglimit.schedule (
    job    text collate "C" primary key,
    ran_at timestamptz not null,
    due_at timestamptz not null
) using heap;

-- +goose Down
drop table pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks, pglimit.upsert,
    pglimit.for_update_nowait, pglimit.sliding_window, pglimit.sliding_log, pglimit.warm_up, pglimit.permits,
    pglimit.limits, pglimit.limits_history, pglimit.instances, pglimit.instances_turn,
    pglimit.top_keys, pglimit.schedule;
drop domain pglimit.nanoseconds;
comment on schema pglimit is null;

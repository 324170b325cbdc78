-- The write-up's tables, in a schema of their own ($schema). Ordinary tables with
-- default settings, one per statement.
create schema $schema;

-- One row per partner: when the last request was let through.
create table $schema.for_update_nowait (key text primary key, last_request timestamptz not null);
create table $schema.upsert (key text primary key, last_request timestamptz not null);

-- One row per request that was let through: for how long it shuts out the next.
create table $schema.exclusion (
    key    text not null,
    during tstzrange not null,
    exclude using gist (key with =, during with &&)
);

-- The write-up's tables, one per statement, in a schema of their own ($schema). They have
-- default settings.
create schema $schema;

-- One row per partner: when its last request was let through.
create table $schema.for_update_nowait (key text primary key, last_request timestamptz not null);
create table $schema.upsert (key text primary key, last_request timestamptz not null);

-- One row per request that was let through: during is when it keeps out other requests.
create table $schema.exclusion (
    key    text not null,
    during tstzrange not null,
    exclude using gist (key with =, during with &&)
);

-- Inserts the row of a partner that has not asked before, so that there is a row to lock.
-- $1 key. Commits by itself, before the transaction that decides.
insert into $schema.for_update_nowait (key, last_request) values ($1::text, '-infinity') on conflict do nothing

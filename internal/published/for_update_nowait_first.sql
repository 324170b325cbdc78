-- Makes the row of a partner who never asked before, so that there is one to lock.
-- $1 key. Commits by itself, before the transaction that decides.
insert into $schema.for_update_nowait (key, last_request) values ($1::text, '-infinity') on conflict do nothing

-- Returns whether this transaction may write. On a standby it may not: decisions can only deny there.
create or replace function pglimit.writable() returns boolean
language sql stable parallel safe return pg_catalog.current_setting('transaction_read_only') = 'off';

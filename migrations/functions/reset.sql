-- Fills a bucket by deleting its row: no row means full. Deletes the row of the key's denials, too, which ends its
-- block. limiter and key: as for pglimit.allow. Waits for any call that holds a row, and locks it until the
-- transaction ends. Filling a full bucket does nothing.
create or replace function pglimit.reset(limiter text, key text) returns void
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
declare
    _key constant text collate "default" := reset.key; -- whatever the caller's collation is
begin
    perform pglimit.request_ns(limiter, key, null, 1, 1, '1 second', null); -- checks the names
    delete from pglimit.token_bucket b where b.key = _key and b.limiter = reset.limiter collate "C";
    delete from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = reset.limiter collate "C";
end
$$;

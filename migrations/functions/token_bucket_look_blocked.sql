-- Reads a bucket, and for how long the key is blocked (0: it is not). Locks nothing. bucket: null if
-- there is no row.
create or replace function pglimit.token_bucket_look_blocked(_key text, _limiter text, out now_ns bigint, out blocked_ns bigint, out bucket pglimit.token_bucket)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the tables were small must be good when they are large
as $$
declare
    block pglimit.token_bucket_blocks;
begin
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
end
$$;

-- Locks the row of a bucket and returns it. Waits for any call that holds the row. If there is
-- none, inserts the row of a full bucket, at the price _token_ns. If the clock has stepped back
-- since the row was written, the bucket owes now what it owed then: the row is corrected, once,
-- whether or not the request is granted.
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_lock(_key text, _limiter text, _token_ns bigint, out bucket pglimit.token_bucket)
language plpgsql
set search_path = ''
as $$
declare
    now_ns bigint;
begin
    loop
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        now_ns := pglimit.clock_ns();
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        values (_key, _limiter, now_ns, _token_ns, now_ns)
        on conflict do nothing;
    end loop;
    now_ns := pglimit.clock_ns(); -- behind the lock: compared with an older time, a new row would be ahead
    if bucket.at_ns > now_ns + pglimit.step_ns() then
        bucket := pglimit.token_bucket_stepped(bucket, now_ns);
        update pglimit.token_bucket b
        set full_ns = bucket.full_ns, at_ns = bucket.at_ns, until_ns = bucket.until_ns, padding = null
        where b.key = _key and b.limiter = _limiter;
    end if;
end
$$;

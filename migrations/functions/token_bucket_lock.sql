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
begin
    loop
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select _key, _limiter, clock.now_ns, _token_ns, clock.now_ns from (select pglimit.clock_ns() as now_ns offset 0) clock
        on conflict do nothing;
    end loop;
    -- The clock is read behind the lock: compared with an older time, any new row would be ahead.
    -- A row gets one reading of it: if it stepped back between two, the bucket would owe the step.
    if bucket.at_ns > pglimit.clock_ns() + pglimit.step_ns() then
        bucket := pglimit.token_bucket_stepped(bucket, pglimit.clock_ns());
        update pglimit.token_bucket b
        set full_ns = bucket.full_ns, at_ns = bucket.at_ns, until_ns = bucket.until_ns, room = null
        where b.key = _key and b.limiter = _limiter;
    end if;
end
$$;

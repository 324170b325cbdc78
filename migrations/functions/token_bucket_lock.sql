-- Locks the row of a bucket and returns it. Waits for any call that holds the row. If there is
-- none, inserts the row of a full bucket, at the price _token_ns. If the clock has stepped back
-- since the row was written, the bucket owes now what it owed then: the row is corrected, once,
-- whether or not the request is granted.
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
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        values (_key, _limiter, pglimit.clock_ns(), _token_ns, pglimit.clock_ns())
        on conflict do nothing;
    end loop;
    now_ns := pglimit.clock_ns(); -- behind the lock: an older time would make any new row one that is ahead
    if bucket.at_ns > now_ns + pglimit.step_ns() then
        update pglimit.token_bucket b
        set full_ns = greatest(1, b.full_ns - (b.at_ns - now_ns)), until_ns = nullif(greatest(0, b.until_ns - (b.at_ns - now_ns)), 0), at_ns = now_ns, room = null
        where b.key = _key and b.limiter = _limiter
        returning b.* into bucket;
    end if;
end
$$;

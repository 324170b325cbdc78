-- Looks at a bucket and at the block of its key. Locks nothing. _token_ns and _calendar: as for token_bucket_take;
-- the row of a bucket is told to who has a calendar as it means in that window.
--
-- taken: the seven numbers of a denial of token_bucket_take. blocked_ns: for how long the key is blocked (0: it is
-- not). If the clock has stepped back since that was written, the key is blocked for as long as it was then.
create or replace function pglimit.token_bucket_look(
    _key text, _limiter text, _token_ns bigint, _calendar text default null, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off
set row_security = off as $$ -- an error is better than rows that are not seen
declare
    bucket bigint[];
    block record;
    now_ns bigint;
    ends_ns bigint; -- of the window of the calendar
begin
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)] into bucket
    from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    select t.until_ns, t.at_ns into block
    from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    ends_ns := pglimit.window_end_ns(_calendar, now_ns); -- without a row too: a time zone that is none is an error
    if ends_ns is not null and (bucket[4] > 0 or bucket[5] = 0 or bucket[3] > now_ns + pglimit.window_step_ns()) then
        bucket := pglimit.token_bucket_read(bucket, now_ns, _token_ns, ends_ns);
    end if;
    taken := array[now_ns, 0] || coalesce(bucket, '{0,0,0,0,0}');
    blocked_ns := pglimit.token_bucket_blocked_ns(block.until_ns, block.at_ns, now_ns);
end
$$;

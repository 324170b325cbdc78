-- Locks the row of token_bucket_blocks of a key and returns it; inserts it if it is missing. Waits
-- for any call that holds the row. If the clock has stepped back since the row was written, all its
-- times are moved by as much, once, so that nobody is blocked for the length of the step.
--
-- Whoever locks the bucket's row too, locks that first. Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_block_lock(_key text, _limiter text, out block pglimit.token_bucket_blocks)
language plpgsql
set search_path = ''
as $$
begin
    loop
        select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        insert into pglimit.token_bucket_blocks (key, limiter, denials, since_ns, level, forget_ns, at_ns)
        select _key, _limiter, 0, clock.now_ns, 0, clock.now_ns, clock.now_ns from (select pglimit.clock_ns() as now_ns offset 0) clock
        on conflict do nothing;
    end loop;
    -- The clock is read behind the lock: compared with an older time, any new row would be ahead.
    if block.at_ns > pglimit.clock_ns() + pglimit.step_ns() then
        update pglimit.token_bucket_blocks b
        set since_ns = greatest(1, b.since_ns - (b.at_ns - clock.now_ns)), until_ns = case when b.until_ns > 0 then greatest(1, b.until_ns - (b.at_ns - clock.now_ns)) end,
            forget_ns = greatest(1, b.forget_ns - (b.at_ns - clock.now_ns)), at_ns = clock.now_ns
        from (select pglimit.clock_ns() as now_ns offset 0) clock where b.key = _key and b.limiter = _limiter
        returning b.* into block;
    end if;
end
$$;

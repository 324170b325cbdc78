-- Counts a denial of a key, and blocks the key if it is one too many.
--
-- Denials are counted in spans of within_ns; a span begins with the first denial behind the one before. The denial
-- that makes them _after in a span blocks the key. A block lasts for_ns, and each further one twice as long as the
-- one before, up to max_ns. If the last block ended _forget_ns ago or earlier, the next one lasts for_ns again.
--
-- Waits for the row of token_bucket_blocks, locks it (inserts it if it is missing), and reads the clock after that,
-- so that each denial is counted, unless another call has just blocked the key. If the clock has stepped back since
-- the row was written, all its times move by as much. With a null for _after it only does that.
--
-- Whoever locks the bucket's row too, locks that first. Must be called with enable_seqscan and jit off. Returns two
-- numbers: when it was counted, and for how long the key is blocked from then on (0: it is not).
create or replace function pglimit.token_bucket_count_denial(
    _key text, _limiter text, _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    now_ns bigint := pglimit.clock_ns();
    block record;
    by_ns bigint; -- the clock's step
    blocked_ns bigint;
begin
    insert into pglimit.token_bucket_blocks as t (key, limiter, denials, since_ns, level, forget_ns, at_ns)
    values (_key, _limiter, 0, now_ns, 0, now_ns, now_ns)
    on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
    now_ns := pglimit.clock_ns();
    select t.denials, t.since_ns, t.level, t.until_ns, t.at_ns into block from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
    by_ns := case when block.at_ns > now_ns + pglimit.step_ns() then block.at_ns - now_ns else 0 end;
    block.since_ns := block.since_ns - by_ns;
    block.until_ns := block.until_ns - by_ns;
    blocked_ns := greatest(0, block.until_ns - now_ns);
    if blocked_ns = 0 and _after is not null then
        if block.denials = 0 or now_ns - block.since_ns >= within_ns then
            block.denials := 0;
            block.since_ns := now_ns;
        end if;
        if block.denials < _after - 1 then
            block.denials := block.denials + 1;
        else
            block.level := case when now_ns - block.until_ns < _forget_ns then least(block.level, 9223372036854775806) + 1 else 1 end;
            blocked_ns := least(max_ns, for_ns * power(2::numeric, least(block.level - 1, 62)))::bigint;
            block.until_ns := now_ns + blocked_ns;
            block.denials := 0;
        end if;
    elsif by_ns = 0 then
        return array[now_ns, blocked_ns];
    end if;
    update pglimit.token_bucket_blocks t
    set denials = block.denials, since_ns = greatest(1, block.since_ns), level = block.level, at_ns = now_ns,
        until_ns = case when block.until_ns is not null then greatest(1, block.until_ns) end,
        forget_ns = greatest(1, t.forget_ns - by_ns, case when _after > 0 then
            least(9223372036854775807, greatest(block.since_ns::numeric + within_ns, block.until_ns::numeric + _forget_ns)) end)
    where t.key = _key and t.limiter = _limiter;
    return array[now_ns, blocked_ns];
end
$$;

-- Counts a denial of a key, and blocks the key if it is one too many.
--
-- Denials are counted in spans of within_ns; a span begins with the first denial behind the one
-- before. The denial that makes them _after in a span blocks the key, and the next count begins
-- behind the block. A block lasts for_ns, and each further one twice as long as the one before, up
-- to max_ns. If the last block ended forget_ns ago or earlier, the next one lasts for_ns again.
--
-- Waits for the row of token_bucket_blocks, locks it, and reads the clock after that, so that each
-- denial is counted. If another call has just blocked the key, writes nothing.
--
-- now_ns: when it was counted. blocked_ns: for how long the key is blocked from then on; 0: it is not.
create or replace function pglimit.token_bucket_count_denial(
    _key text, _limiter text, _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint, out now_ns bigint, out blocked_ns bigint
)
language plpgsql
set search_path = ''
as $$
declare
    block pglimit.token_bucket_blocks;
begin
    block := pglimit.token_bucket_block_lock(_key, _limiter);
    now_ns := pglimit.clock_ns();
    blocked_ns := greatest(0, coalesce(block.until_ns - now_ns, 0));
    if blocked_ns > 0 then
        return;
    end if;
    if block.denials = 0 or now_ns >= block.since_ns + within_ns then
        block.denials := 0;
        block.since_ns := now_ns;
    end if;
    block.denials := block.denials + 1;
    if block.denials >= _after then
        block.level := case when now_ns < block.until_ns + _forget_ns then block.level + 1 else 1 end;
        blocked_ns := least(max_ns, for_ns * power(2::numeric, least(block.level - 1, 62)))::bigint;
        block.until_ns := now_ns + blocked_ns;
        block.denials := 0;
    end if;
    update pglimit.token_bucket_blocks b
    set denials = block.denials, since_ns = block.since_ns, level = block.level, until_ns = block.until_ns, at_ns = greatest(b.at_ns, now_ns),
        forget_ns = greatest(block.since_ns + within_ns, block.until_ns + _forget_ns)
    where b.key = _key and b.limiter = _limiter;
end
$$;

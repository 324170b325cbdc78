-- Takes want tokens from one bucket, all or nothing, as token_bucket_take does, unless the key is
-- blocked. A denial is counted, and may block the key: see token_bucket_count_denial, which also
-- explains the parameters behind want.
--
-- A call for a blocked key locks and writes nothing, unless the clock has stepped back since it was
-- blocked: then once. Other denials write, to count. A grant looks once more behind the lock of the
-- bucket's row: if the key was blocked while it waited, it is undone there.
-- Rows are locked in this order: the bucket's, then that of token_bucket_blocks.
--
-- _key, _limiter, _token_ns, _window_ns, impatient: as for token_bucket_take.
--
-- granted: tokens. now_ns: the time of the decision. bucket: the row after it (null: there is none).
-- blocked_ns: for how long the key is blocked from now_ns on; 0: it is not.
create or replace function pglimit.token_bucket_take_or_block(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint,
    _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint, impatient boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket, out blocked_ns bigint
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    block pglimit.token_bucket_blocks;
    taken record;
    counted record;
begin
    if (_after > 0 and within_ns between 1 and 315360000000000000 and for_ns between 1 and max_ns and max_ns <= 315360000000000000
        and _forget_ns between 0 and 315360000000000000) is not true then
        raise exception 'token_bucket_take_or_block: after %, within_ns %, for_ns %, max_ns %, forget_ns %', _after, within_ns, for_ns, max_ns, _forget_ns
            using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    -- The locks that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode;
    granted := 0;
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    if blocked_ns > 0 then
        if block.at_ns > now_ns + pglimit.step_ns() then
            perform pglimit.token_bucket_block_lock(_key, _limiter); -- moves such a row
        end if;
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        now_ns := pglimit.clock_ns(); -- behind the look
        blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
        if blocked_ns > 0 then -- else the block has just ended
            return;
        end if;
    end if;

    select * into taken from pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, null, null, impatient);
    granted := taken.granted;
    now_ns := taken.now_ns;
    bucket := taken.bucket;
    if granted = 0 then
        select * into counted from pglimit.token_bucket_count_denial(_key, _limiter, _after, within_ns, for_ns, max_ns, _forget_ns);
        if counted.blocked_ns > 0 then
            now_ns := counted.now_ns;
            blocked_ns := counted.blocked_ns;
        end if;
        return;
    end if;
    select b.* into block from pglimit.token_bucket_blocks b where b.key = _key and b.limiter = _limiter;
    blocked_ns := pglimit.token_bucket_blocked_ns(block, now_ns);
    if blocked_ns > 0 then
        update pglimit.token_bucket b set full_ns = b.full_ns - granted * _token_ns where b.key = _key and b.limiter = _limiter returning b.* into bucket;
        granted := 0;
    end if;
end
$$;

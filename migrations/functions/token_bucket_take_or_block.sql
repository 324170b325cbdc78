-- Takes from one bucket as token_bucket_take does, unless the key is blocked. Counts other denials by the rule: see
-- token_bucket_count_denial; or not, if it is '{}'.
--
-- It looks at the block, and, once more, behind the bucket's lock: another call may have blocked the key while this
-- one waited for the row. (In a transaction with repeatable reads that is not seen.) A denial by a plain read locks
-- no bucket.
--
-- The other parameters, and taken: as for token_bucket_take. blocked_ns: for how long the key is blocked (0: it is
-- not).
create or replace function pglimit.token_bucket_take_or_block(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text, rule bigint[],
    _calendar text default null, relaxed boolean default false, out taken bigint[], out blocked_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    block record;
    now_ns bigint;
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, unit) and want > 0
        and (rule = '{}' or cardinality(rule) = 5 and 0 < all (rule[1:4]) and 0 <= rule[5] and rule[3] <= rule[4]
            and 3650 * 86400000000000 >= all (rule[2:5]))) is not true then
        raise exception 'token_bucket_take_or_block: want % in units of %, token_ns %, window_ns %, rule %',
            want, unit, _token_ns, _window_ns, rule using errcode = 'invalid_parameter_value';
    end if;
    if pglimit.writable() then
        lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, unit, _calendar);
    for look in 1 .. 2 loop
        select t.until_ns, t.at_ns into block
        from pglimit.token_bucket_blocks t where t.key = _key and t.limiter = _limiter;
        -- one date for the bucket and the block
        now_ns := case when taken[2] = 0 then taken[1] else pglimit.clock_ns() end;
        blocked_ns := pglimit.token_bucket_blocked_ns(block.until_ns, block.at_ns, now_ns);
        if blocked_ns > 0 then
            if block.at_ns > now_ns + pglimit.step_ns() and pglimit.writable() then
                block := pglimit.token_bucket_count_denial(_key, _limiter, null); -- moves the block
            end if;
            if taken[2] is null then
                taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, unit, _calendar);
            end if;
            taken[1] := now_ns;
            taken[2] := 0;
            return;
        end if;
        exit when look = 2 or taken[2] = 0;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    if taken[2] is null then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, unit, null, _calendar);
    end if;
    if taken[2] = 0 and rule <> '{}' and not exists ( -- denials of a pause do not count
        select from pglimit.token_bucket t
        where t.key = _key and t.limiter = _limiter and t.paused_ns > greatest(t.at_ns, taken[1])) then
        block := pglimit.token_bucket_count_denial(_key, _limiter, rule);
        blocked_ns := block.blocked_ns;
        taken[1] := case when blocked_ns > 0 then block.now_ns else taken[1] end;
    end if;
end
$$;

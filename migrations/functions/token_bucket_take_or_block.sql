-- Takes want tokens from one bucket, all or nothing, as token_bucket_take does, unless the key is
-- blocked. A denial is counted, and may block the key: see token_bucket_count_denial, which also
-- explains the parameters behind want. If these are null, it is not counted.
--
-- A call for a blocked key locks and writes nothing, unless the clock has stepped back since it was blocked:
-- then once. Other denials write, to count. A grant looks once more behind the lock of the bucket's row: if the key
-- was blocked while it waited, it is undone there.
--
-- Returns the seven numbers of token_bucket_take, and for how long the key is blocked (0: it is not).
create or replace function pglimit.token_bucket_take_or_block(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint,
    _after bigint, within_ns bigint, for_ns bigint, max_ns bigint, _forget_ns bigint, patience text
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    longest_ns constant bigint := 3650 * 86400000000000;
    looked bigint[];
    taken bigint[];
    counted bigint[];
begin
    if (_after > 0 and within_ns between 1 and longest_ns and for_ns between 1 and max_ns and max_ns <= longest_ns and _forget_ns between 0 and longest_ns
        or coalesce(_after, within_ns, for_ns, max_ns, _forget_ns) is null) is not true then
        raise exception 'token_bucket_take_or_block: after %, within_ns %, for_ns %, max_ns %, forget_ns %', _after, within_ns, for_ns, max_ns, _forget_ns
            using errcode = 'invalid_parameter_value';
    end if;
    if patience is not null then
        patience := pg_catalog.set_config('lock_timeout', patience, true);
    end if;
    lock table pglimit.token_bucket, pglimit.token_bucket_blocks in row exclusive mode; -- before the read: see token_bucket_take
    looked := pglimit.token_bucket_look(_key, _limiter);
    if looked[2] = 0 then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, patience);
        if taken[2] > 0 then
            looked := pglimit.token_bucket_look(_key, _limiter);
        elsif _after > 0 then
            counted := pglimit.token_bucket_count_denial(_key, _limiter, _after, within_ns, for_ns, max_ns, _forget_ns);
            return case when counted[2] > 0 then counted[1] else taken[1] end || taken[2:7] || counted[2];
        end if;
        if looked[2] = 0 then
            return taken || 0::bigint;
        end if;
        update pglimit.token_bucket t set full_ns = t.full_ns - want * _token_ns where t.key = _key and t.limiter = _limiter;
        looked[3] := looked[3] - want * _token_ns;
    end if;
    if looked[8] > looked[1] + pglimit.step_ns() then
        perform pglimit.token_bucket_count_denial(_key, _limiter, null, null, null, null, null); -- moves such a row
    end if;
    return looked[1:1] || 0::bigint || looked[3:7] || looked[2];
end
$$;

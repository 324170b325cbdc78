-- The last step of token_bucket_take with a rule: counts a denial, or undoes a grant if another call has blocked the key
-- while this one waited for the bucket's row, which it holds now. (In a transaction with repeatable reads that is not
-- seen.) taken: the seven numbers that were decided. Returns eight, as token_bucket_take does.
create or replace function pglimit.token_bucket_block(_key text, _limiter text, _token_ns bigint, rule bigint[], taken bigint[], _calendar text) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    seen bigint[];
begin
    if taken[2] = 0 then
        seen := case when rule = '{}' then array[taken[1], 0] else pglimit.token_bucket_count_denial(_key, _limiter, rule) end;
        return case when seen[2] > 0 then seen[1] else taken[1] end || taken[2:7] || seen[2];
    end if;
    seen := pglimit.token_bucket_look(_key, _limiter, _token_ns, _calendar);
    if seen[8] = 0 then
        return taken || 0::bigint;
    end if;
    update pglimit.token_bucket t set full_ns = t.full_ns - taken[2] * _token_ns where t.key = _key and t.limiter = _limiter;
    seen[3] := seen[3] - taken[2] * _token_ns;
    return seen[1:8];
end
$$;

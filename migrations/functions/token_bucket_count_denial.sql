-- Counts a denial of a key, and blocks the key if it is one too many.
--
-- rule: after, within_ns, for_ns, max_ns and forget_ns. Denials are counted in spans of within_ns; a span begins with
-- the first denial behind the one before. The denial that makes them "after" in a span blocks the key. A block lasts
-- for_ns, and each further one twice as long as the one before, up to max_ns. If the last block ended forget_ns ago or
-- earlier, the next one lasts for_ns again.
--
-- Waits for the row of token_bucket_blocks, locks it (inserts it if it is missing), and reads the clock after that,
-- so that each denial is counted, unless another call has just blocked the key. If the clock has stepped back since
-- the row was written, all its times move by as much. Without a rule it only does that.
--
-- Whoever locks the bucket's row too, locks that first: two calls with a rule for one key in one transaction can deadlock
-- with another one. Must be called with enable_seqscan and jit off.
-- now_ns: when it was counted. blocked_ns: for how long the key is blocked from then on (0: it is not).
create or replace function pglimit.token_bucket_count_denial(_key text, _limiter text, rule bigint[], out now_ns bigint, out blocked_ns bigint)
language plpgsql set search_path = '' as $$
declare
    b record; -- the row
begin
    now_ns := pglimit.clock_ns();
    insert into pglimit.token_bucket_blocks as t (key, limiter, denials, since_ns, level, forget_ns, at_ns)
    values (_key, _limiter, 0, now_ns, 0, now_ns, now_ns)
    on conflict (key, limiter) do update set at_ns = t.at_ns where false; -- which locks the row
    now_ns := pglimit.clock_ns();
    select t.denials, t.since_ns - s.by_ns as since_ns, t.level, t.until_ns - s.by_ns as until_ns, t.forget_ns - s.by_ns as forget_ns, s.by_ns into b
    from pglimit.token_bucket_blocks t
    cross join lateral (select case when t.at_ns > now_ns + pglimit.step_ns() then t.at_ns - now_ns else 0 end as by_ns) s -- the clock's step
    where t.key = _key and t.limiter = _limiter;
    blocked_ns := greatest(0, b.until_ns - now_ns);
    if blocked_ns = 0 and rule is not null then
        if b.denials = 0 or now_ns - b.since_ns >= rule[2] then
            b.denials := 0;
            b.since_ns := now_ns;
        end if;
        b.denials := b.denials + 1;
        if b.denials >= rule[1] then
            b.denials := 0;
            b.level := case when now_ns - b.until_ns < rule[5] then least(b.level, 9223372036854775806) + 1 else 1 end;
            blocked_ns := least(rule[4], rule[3] * power(2::numeric, least(b.level - 1, 62)))::bigint;
            b.until_ns := now_ns + blocked_ns;
        end if;
        b.forget_ns := greatest(b.forget_ns, least(9223372036854775807, greatest(b.since_ns::numeric + rule[2], b.until_ns::numeric + rule[5])));
    elsif b.by_ns = 0 then
        return;
    end if;
    update pglimit.token_bucket_blocks t
    set denials = b.denials, since_ns = greatest(1, b.since_ns), level = b.level, at_ns = now_ns, forget_ns = greatest(1, b.forget_ns),
        until_ns = case when b.until_ns is not null then greatest(1, b.until_ns) end
    where t.key = _key and t.limiter = _limiter;
end
$$;

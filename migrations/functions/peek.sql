-- Looks at a bucket without taking anything. Parameters and result are as for pglimit.allow; allowed says whether n
-- tokens are there and the key is not blocked, granted is 0, and observed null. A plain read: locks nothing, waits for
-- nobody.
create or replace function pglimit.peek(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz, out observed boolean
)
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := peek.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := peek.limiter;
    asked record;
    looked record;
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.allowed, 0, r.retry_after, r.retry_after, r.at, r.live into allowed, granted, retry_after, reset_after, at, limit_text
        from pglimit.rule_of(limiter collate "C", key collate "C", n) r;
        if allowed is not null then
            remaining := case when not allowed then 0 end;
            return;
        end if;
    end if;
    asked := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    looked := pglimit.token_bucket_look(_key, _limiter, asked.token_ns, asked.window_ns, asked.calendar);
    select d.remaining >= n and looked.blocked_ns = 0, d.granted, d.remaining, d.retry_after, d.reset_after, d.at
    into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(looked.taken, looked.blocked_ns, n, asked.token_ns, asked.window_ns, asked.calendar) d;
end
$$;

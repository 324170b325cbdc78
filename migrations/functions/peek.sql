-- Looks at a bucket without taking anything. Parameters and result are as for pglimit.allow; allowed says whether n
-- tokens are there and the key is not blocked, and granted is 0. A plain read: locks nothing, waits for nobody.
create or replace function pglimit.peek(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql set search_path = '' as $$
declare
    asked record;
    looked bigint[];
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.allowed, 0, r.remaining, r.retry_after, r.retry_after, r.at, r.limit_text into allowed, granted, remaining, retry_after, reset_after, at, limit_text
        from pglimit.limits_of(limiter collate "C", key collate "C") r;
    end if;
    asked := pglimit.request_ns(limit_text collate "C", n, tokens, period, burst);
    perform pglimit.valid_name('key', key, 1024), pglimit.valid_name('limiter', limiter, 128);
    if allowed is null then
        looked := pglimit.token_bucket_look(key collate "C", limiter collate "C");
        select d.remaining >= n and looked[2] = 0, 0, d.remaining, d.retry_after, d.reset_after, d.at
        into allowed, granted, remaining, retry_after, reset_after, at
        from pglimit.token_bucket_decision(looked[1], 0, looked[3:7], n, asked.token_ns, asked.window_ns, looked[2]) d;
    end if;
end
$$;

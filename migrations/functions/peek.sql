-- Looks at a bucket without taking anything. Parameters and result are as for pglimit.allow; allowed says whether n
-- tokens are there and the key is not blocked, and granted is 0. A plain read: locks nothing, waits for nobody.
create or replace function pglimit.peek(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql set search_path = '' as $$
declare
    asked constant record := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    looked constant bigint[] := pglimit.token_bucket_look(key collate "C", limiter collate "C");
begin
    select d.remaining >= n and looked[8] = 0, d.granted, d.remaining, d.retry_after, d.reset_after, d.at
    into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(looked, n, asked.token_ns, asked.window_ns) d;
end
$$;

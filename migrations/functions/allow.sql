-- Takes n tokens of a bucket, all or nothing, and returns the decision. For programs in any language:
--
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20');
--     select * from pglimit.allow('api', 'user:42', tokens => 10, period => '1 second', burst => 20, n => 3);
--
-- It takes from the same bucket, by the same rules, as a Go Limiter of that name with the strategy token_bucket.
-- limiter and key name the bucket: what is limited, and for whom. The limit is a text as ParseLimit reads it in Go,
-- or numbers; without a burst, the burst equals the tokens. A key that a Go Limiter with Config.Block has blocked is
-- denied; this function counts no denials.
--
-- A grant waits for any call that holds the row, and locks it until the transaction ends; a rollback undoes it. (A
-- transaction that takes from several keys must name them in one order, as every other does.) A denial locks and
-- writes nothing, unless another call took the tokens meanwhile, or, once, the clock has stepped back since the key's
-- last write. Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it. retry_after: the
-- time from "at" until n tokens are there, if nobody takes any, and the key is not blocked. reset_after: until the
-- bucket is full. "at": the database's clock at the decision. Fails with SQLSTATE 22023, and has taken nothing, if an
-- argument is null or nonsense.
create or replace function pglimit.allow(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql set search_path = '' as $$
declare
    asked constant record := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    -- With the collation of the columns, whatever the caller's is.
    taken constant bigint[] := pglimit.token_bucket_take(key collate "C", limiter collate "C", asked.token_ns, asked.window_ns, n, n, null, '{}');
begin
    select d.* into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(taken, n, asked.token_ns, asked.window_ns) d;
end
$$;

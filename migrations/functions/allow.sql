-- Takes n tokens of a bucket, all or nothing, and returns the decision. For programs in any language:
--
--     select * from pglimit.allow('api', 'user:42');
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20');
--     select * from pglimit.allow('api', 'user:42', tokens => 10, period => '1 second', burst => 20, n => 3);
--
-- It takes from the same bucket, by the same rules, as a Go Limiter of that name with the strategy token_bucket.
-- limiter and key name the bucket: what is limited, and for whom. The limit is a text as ParseLimit reads it in Go,
-- or numbers; without a burst, the burst equals the tokens. Without a limit, the table pglimit.limits says what holds. A key that a Go Limiter with Config.Block has blocked is
-- denied; this function counts no denials.
--
-- A grant waits for any call that holds the row, and locks it until the transaction ends; a rollback undoes it. (A
-- transaction that takes from several keys must name them in one order, as every other does.) A denial locks and
-- writes nothing, unless another call took the tokens meanwhile, or, once, the clock has stepped back since the key's
-- last write. Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it. retry_after: the
-- time from "at" until n tokens are there, if nobody takes any, and the key is not blocked. reset_after: until the
-- bucket is full. "at": the database's clock at the decision. observed: what the rule of pglimit.limits that is only
-- observed would have allowed; null: there is none. Where a rule allows all, remaining is null. Fails with SQLSTATE 22023, and has taken nothing, if an
-- argument is null or nonsense.
create or replace function pglimit.allow(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz, out observed boolean
)
language plpgsql set search_path = '' as $$
declare
    observed_text text;
    asked record;
    taken bigint[];
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.* into allowed, remaining, retry_after, at, limit_text, observed_text
        from pglimit.limits_of(limiter collate "C", key collate "C") r;
    end if;
    asked := pglimit.request_ns(limit_text collate "C", n, tokens, period, burst);
    perform pglimit.valid_name('key', key, 1024), pglimit.valid_name('limiter', limiter, 128);
    if allowed is null then
        taken := pglimit.token_bucket_take_or_block(
            key collate "C", limiter collate "C", -- that of the columns, whatever the caller's is
            asked.token_ns, asked.window_ns, n, null, null, null, null, null, null);
        select d.* into allowed, granted, remaining, retry_after, reset_after, at
        from pglimit.token_bucket_decision(taken[1], taken[2], taken[3:7], n, asked.token_ns, asked.window_ns, taken[8]) d;
    else
        granted := case when allowed then n else 0 end;
        reset_after := retry_after;
    end if;
    if observed_text is not null then -- in a bucket of its own; more than its burst would be denied
        asked := pglimit.request_ns(observed_text, 1, null, null, null);
        observed := case when n > asked.window_ns / asked.token_ns then false
            else (select d.allowed from pglimit.allow(limiter || ' (observed)', key, observed_text, n) d) end;
    end if;
end
$$;

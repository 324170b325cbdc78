-- Takes n tokens of a bucket, all or nothing, and returns the decision. For programs in any language:
--
--     select * from pglimit.allow('api', 'user:42');
--     select * from pglimit.allow('api', 'user:42', '10/s burst 20');
--     select * from pglimit.allow('api', 'user:42', tokens => 10, period => '1 second', burst => 20, n => 3);
--
-- It takes from the same bucket, by the same rules, as a Go Limiter of that name with the strategy token_bucket.
-- limiter and key name the bucket: what is limited, and for whom. The limit is a text as ParseLimit reads it in Go,
-- or numbers; without a burst, the burst equals the tokens. Without a limit, or with a null, the table pglimit.limits
-- decides. A key that a Go Limiter with Config.Block has blocked is denied; this function counts no denials.
--
-- A grant waits for any call that holds the row, and locks it until the transaction ends; a rollback undoes it. (A
-- transaction that takes from several keys must name them in one order, as every other does.) A denial locks no row and
-- writes nothing, unless another call took the tokens meanwhile, or, once, the clock has stepped back since the key's
-- last write; or a rule that is only observed takes from its own bucket beside it. Call it in FROM: "select (pglimit.allow(...)).*" calls it once for each column.
--
-- allowed: whether the tokens were granted. granted: n or 0. remaining: tokens in the bucket after it. retry_after: the
-- time from "at" until n tokens are there, if nobody takes any, and the key is not blocked. reset_after: until the
-- bucket is full. "at": the database's clock at the decision. observed: what a rule of the table that is only observed
-- would have allowed; null: there is none, or a rule decides without a limit. Fails with SQLSTATE 22023, and has taken nothing, if limiter, key
-- or n is null, an argument is nonsense, or there is no limit; with 55000, naming the row, if the rule that decides
-- cannot be read.
create or replace function pglimit.allow(
    limiter text, key text, limit_text text default null, n bigint default 1,
    tokens bigint default null, period interval default null, burst bigint default null,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz, out observed boolean
)
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := allow.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := allow.limiter;
    asked record;
    answer record;
    beside bigint[]; -- prices of a rule that is only observed
    beside_calendar text;
begin
    if num_nonnulls(limit_text, tokens, period, burst) = 0 then
        select r.allowed, r.retry_after, r.retry_after, r.at, r.live, r.beside, r.beside_calendar
        into allowed, retry_after, reset_after, at, limit_text, beside, beside_calendar
        from pglimit.rule_of(limiter collate "C", key collate "C", n) r;
        if allowed is not null then
            granted := case when allowed then n else 0 end;
            remaining := case when not allowed then 0 end;
            return;
        end if;
    end if;
    asked := pglimit.request_ns(limiter, key, limit_text collate "C", n, tokens, period, burst);
    answer := pglimit.token_bucket_take_or_block(_key, _limiter, asked.token_ns, asked.window_ns, n, n, null, '{}', asked.calendar);
    select d.* into allowed, granted, remaining, retry_after, reset_after, at
    from pglimit.token_bucket_decision(answer.taken, answer.blocked_ns, n, asked.token_ns, asked.window_ns, asked.calendar) d;
    if beside is not null then -- in a bucket of its own. More than its burst is denied
        observed := n <= beside[2] / beside[1]
            and (pglimit.token_bucket_take_or_block(_key, _limiter || ' (observed)', beside[1], beside[2], n, n, null, '{}', beside_calendar)).taken[2] > 0;
    end if;
end
$$;

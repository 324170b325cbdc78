-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one.
--
-- A lease sets a part of the window, leased_ns, aside until until_ns: nobody else can take it and it is not
-- refilled. If it is not settled until then, it counts as spent. All leases of a bucket end with the first: else one
-- that nobody settles would last as long as other processes take new ones. If less than a fifth of ttl_ns is left
-- until then, no new lease is granted.
--
-- Settling takes the lease out of leased_ns, and the bucket owes the spent tokens from then on, at the price in the
-- row. A lease that the row does not know (it has expired, or the bucket was reset) is left alone.
--
-- want: tokens of the new lease at most. share: at most one in that many of the tokens that are there. ttl_ns: how
-- long it lasts at most. settle_tokens, settle_spent, settle_until_ns: the lease to settle, how many of its tokens were
-- spent, and when it expires. The others: as for token_bucket_take.
--
-- Waits for the row, locks it, and inserts it if it is missing. Returns the seven numbers of token_bucket_take: the
-- tokens are those of the new lease, which expires at until_ns.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint, relaxed boolean default false
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    now_ns bigint;
    granted bigint := 0;
    seen bigint[];
    bucket bigint[];
    said text;
    left_ns bigint; -- of a pause, see token_bucket_paused; null: there is none
    asked bigint[]; -- the bucket at the price of the new lease
begin
    if (_key is not null and _limiter is not null and want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and pglimit.max_window_ns()
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    said := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    select array[t.full_ns, t.token_ns, t.at_ns, coalesce(t.leased_ns, 0), coalesce(t.until_ns, 0)], t.paused_ns
    into seen, left_ns from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    now_ns := pglimit.clock_ns();
    left_ns := case when left_ns > seen[3] then left_ns - greatest(seen[3], now_ns) end;
    bucket := case when seen[3] > now_ns + pglimit.step_ns() and (seen[4] > 0 or seen[5] = 0) then pglimit.token_bucket_read(seen, now_ns, seen[2]) else seen end;
    if settle_tokens > 0 and bucket[5] = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket[2] <= bucket[4] then
        bucket[4] := bucket[4] - settle_tokens * bucket[2];
        bucket[5] := case when bucket[4] > 0 then bucket[5] else 0 end;
        bucket[1] := least(9223372036854775807, greatest(bucket[1], now_ns) + settle_spent::numeric * bucket[2]);
        bucket[3] := greatest(bucket[3], now_ns);
    end if;
    if left_ns <= 0 and bucket[2] = _token_ns then -- what is written now knows no pause
        bucket[1] := greatest(bucket[1], least(9223372036854775807, now_ns::numeric + left_ns + _window_ns - _token_ns));
    end if;
    asked := case when left_ns is null then pglimit.token_bucket_read(bucket, now_ns, _token_ns)
        else pglimit.token_bucket_paused(bucket, left_ns, now_ns, _token_ns, _window_ns, null) end;
    asked[5] := case when asked[4] > 0 then asked[5] else now_ns + ttl_ns end;
    if asked[5] - now_ns >= ttl_ns / 5 and (left_ns > 0) is not true then
        granted := least(want, greatest(0, pglimit.tokens_there(asked[1], now_ns, _token_ns, greatest(0, _window_ns - asked[4]))) / share);
    end if;
    if granted > 0 then
        bucket := asked;
        bucket[4] := asked[4] + granted * _token_ns;
    end if;
    if bucket <> seen then -- if there was nothing to settle and nothing is granted, nothing has changed
        update pglimit.token_bucket t
        set full_ns = bucket[1], token_ns = bucket[2], at_ns = bucket[3], leased_ns = nullif(bucket[4], 0), until_ns = nullif(bucket[5], 0), padding = null,
            paused_ns = case when left_ns > 0 then t.paused_ns - greatest(0, seen[3] - bucket[3]) end
        where t.key = _key and t.limiter = _limiter;
    end if;
    return array[now_ns, granted] || case when left_ns is not null and granted = 0
        then pglimit.token_bucket_paused(bucket, left_ns, now_ns, _token_ns, _window_ns, null) else bucket end;
end
$$;

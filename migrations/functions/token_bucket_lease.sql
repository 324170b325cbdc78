-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one: of
-- want tokens at most, and at most one in share of those that are there.
--
-- A lease is a part of the window, leased_ns, that is set aside until until_ns: it can be
-- taken by nobody else and does not flow back. Leases that are out at the same time share
-- one until_ns, that of the first: otherwise one that nobody settles would last for as long
-- as others go on. In the last fifth of ttl_ns there are no new ones. A lease that is not
-- settled counts as spent when it expires.
--
-- Settling takes the lease out of leased_ns, and what was spent of it is owed from then on.
-- It goes by the price at which the row was written, so it forgets nothing that another
-- limit wrote. A lease that the row does not know (expired, or reset since) is left alone.
--
-- Locks the row, or makes it. granted: tokens of the new lease, which expires at
-- bucket.until_ns. now_ns: when. bucket: the row after it. Parameters as in token_bucket_take.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint, relaxed boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    seen pglimit.token_bucket;
    settles boolean;
begin
    if (want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and 6400000000000000000
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    if relaxed then
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
    end if;
    -- As a write does: REINDEX would deadlock with a read that becomes a write.
    lock table pglimit.token_bucket in row exclusive mode;
    bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    now_ns := pglimit.clock_ns();

    settles := coalesce(settle_tokens > 0 and bucket.until_ns = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket.token_ns <= bucket.leased_ns, false);
    if settles then
        bucket.leased_ns := nullif(bucket.leased_ns - settle_tokens * bucket.token_ns, 0);
        bucket.full_ns := least(9223372036854775807, greatest(bucket.full_ns, now_ns) + settle_spent::numeric * bucket.token_ns);
        bucket.at_ns := greatest(bucket.at_ns, now_ns);
    end if;

    seen := pglimit.token_bucket_read(bucket, now_ns, _token_ns);
    if seen.leased_ns is null then
        seen.until_ns := now_ns + ttl_ns;
    end if;
    granted := case
        when seen.until_ns - now_ns < ttl_ns / 5 then 0
        else least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns) / share)
    end;
    if granted > 0 then
        bucket := seen;
        bucket.leased_ns := coalesce(seen.leased_ns, 0) + granted * _token_ns;
    elsif not settles then
        return;
    end if;
    update pglimit.token_bucket b
    set full_ns = bucket.full_ns, token_ns = bucket.token_ns, at_ns = bucket.at_ns,
        leased_ns = bucket.leased_ns, until_ns = case when bucket.leased_ns > 0 then bucket.until_ns end, room = null
    where b.key = _key and b.limiter = _limiter;
end
$$;

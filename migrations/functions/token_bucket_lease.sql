-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one.
--
-- A lease sets a part of the window, leased_ns, aside until until_ns: nobody else can take it and
-- it is not refilled. All leases of a bucket share the until_ns of the first. Otherwise a lease
-- that nobody settles would last as long as other processes take new ones. If less than a fifth
-- of ttl_ns is left until then, no new lease is granted. A lease that is not settled counts as
-- spent when it expires.
--
-- Settling takes the lease out of leased_ns, and the bucket owes the spent tokens from then on. It
-- uses the price of a token in the row, so that it loses nothing that was written under another
-- limit. A lease that the row does not know (it has expired, or the bucket was reset) is left alone.
--
-- _key, _limiter, _token_ns, _window_ns: as in token_bucket_take. want: tokens of the new
-- lease at most. share: at most one in that many of the tokens that are there. ttl_ns: how long
-- the new lease lasts at most. settle_tokens, settle_spent, settle_until_ns: the lease to settle,
-- how many of its tokens were spent, and when it expires.
--
-- Waits for the row, locks it, and inserts it if it is missing. Returns granted: tokens of the new
-- lease, which expires at bucket.until_ns. now_ns: the time of the decision. bucket: the row after it.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    seen pglimit.token_bucket;
begin
    if (want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and 6400000000000000000
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    now_ns := pglimit.clock_ns();

    if settle_tokens > 0 and bucket.until_ns = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket.token_ns <= bucket.leased_ns then
        bucket.leased_ns := nullif(bucket.leased_ns - settle_tokens * bucket.token_ns, 0);
        bucket.full_ns := least(9223372036854775807, greatest(bucket.full_ns, now_ns) + settle_spent::numeric * bucket.token_ns);
        bucket.at_ns := greatest(bucket.at_ns, now_ns);
    end if;

    seen := pglimit.token_bucket_read(bucket, now_ns, _token_ns);
    seen.until_ns := case when seen.leased_ns > 0 then seen.until_ns else now_ns + ttl_ns end;
    granted := case
        when seen.until_ns - now_ns < ttl_ns / 5 then 0
        else least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns) / share)
    end;
    if granted > 0 then
        bucket := seen;
        bucket.leased_ns := coalesce(seen.leased_ns, 0) + granted * _token_ns;
    end if;
    -- If there was nothing to settle and nothing is granted, nothing has changed.
    update pglimit.token_bucket b
    set full_ns = bucket.full_ns, token_ns = bucket.token_ns, at_ns = bucket.at_ns,
        leased_ns = bucket.leased_ns, until_ns = case when bucket.leased_ns > 0 then bucket.until_ns end, padding = null
    where b.key = _key and b.limiter = _limiter and b is distinct from bucket;
end
$$;

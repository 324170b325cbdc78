-- Returns the decision about a request for n tokens, as allow and peek return it. now_ns: the time of the
-- decision, or a little earlier than the row was written. _granted: tokens. b: the bucket's row after it, five
-- numbers as of token_bucket_read (zeros: there is none). token_ns, window_ns: prices of a token and of a burst.
-- blocked_ns: for how long the key is blocked.
--
-- The result is the same as of Bucket.Decision in internal/bucket: remaining is how many tokens are left.
-- retry_after is the time from "at" until n tokens are there and the key is not blocked, reset_after until
-- the bucket is full, both rounded up to a microsecond.
create or replace function pglimit.token_bucket_decision(
    now_ns bigint, _granted bigint, b bigint[], n bigint, token_ns bigint, window_ns bigint, blocked_ns bigint,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    bucket bigint[];
begin
    b := case when b[3] > now_ns + pglimit.step_ns() then pglimit.token_bucket_read(b, now_ns, b[2]) else b end;
    now_ns := greatest(now_ns, b[3]); -- not dated before the grants that it counts
    bucket := case when b[2] > 0 then pglimit.token_bucket_read(b, now_ns, token_ns) end;
    allowed := _granted > 0;
    granted := _granted;
    remaining := greatest(0, greatest(0, window_ns - coalesce(bucket[4], 0)) - (coalesce(bucket[1], now_ns) - now_ns)) / token_ns;
    retry_after := ceil(greatest(blocked_ns, pglimit.token_bucket_wait_ns(b, now_ns, n, token_ns, window_ns)) / 1000.0)::double precision * interval '1 microsecond';
    reset_after := ceil(pglimit.token_bucket_wait_ns(b, now_ns, window_ns / token_ns, token_ns, window_ns) / 1000.0)::double precision * interval '1 microsecond';
    at := pglimit.time_of(now_ns);
end
$$;

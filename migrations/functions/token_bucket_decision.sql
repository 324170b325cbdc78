-- Returns the decision about a request for n tokens, as allow and peek return it. taken: the numbers that
-- token_bucket_take returned. token_ns, window_ns: prices of a token and of a burst.
--
-- The result is the same as of Bucket.Decision in internal/bucket: remaining is how many tokens are left.
-- retry_after is the time from "at" until n tokens are there and the key is not blocked, reset_after until
-- the bucket is full, both rounded up to a microsecond.
create or replace function pglimit.token_bucket_decision(
    taken bigint[], n bigint, token_ns bigint, window_ns bigint,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    now_ns bigint := taken[1];
    b bigint[] := taken[3:7]; -- the row
    owed_ns bigint;
    leased_ns bigint := 0;
    retry_ns bigint;
    reset_ns bigint;
begin
    if b[3] > now_ns + pglimit.step_ns() then
        b := pglimit.token_bucket_read(b, now_ns, b[2]);
    end if;
    now_ns := greatest(now_ns, b[3]); -- not dated before the grants that it counts
    if b[2] in (0, token_ns) and b[4] = 0 then
        owed_ns := greatest(0, b[1] - now_ns);
        retry_ns := owed_ns - (window_ns - n * token_ns);
        reset_ns := owed_ns;
    else
        retry_ns := pglimit.token_bucket_wait_ns(b, now_ns, n, token_ns, window_ns);
        reset_ns := pglimit.token_bucket_wait_ns(b, now_ns, window_ns / token_ns, token_ns, window_ns);
        b := pglimit.token_bucket_read(b, now_ns, token_ns);
        owed_ns := b[1] - now_ns;
        leased_ns := b[4];
    end if;
    granted := taken[2];
    allowed := granted > 0;
    remaining := greatest(0, greatest(0, window_ns - leased_ns) - owed_ns) / token_ns;
    retry_after := ((greatest(0, retry_ns, taken[8]) + 999) / 1000)::double precision * interval '1 microsecond';
    reset_after := ((reset_ns + 999) / 1000)::double precision * interval '1 microsecond';
    at := pglimit.time_of(now_ns);
end
$$;

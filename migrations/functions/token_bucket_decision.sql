-- Returns the decision about a request for n tokens, as allow and peek return it. taken: the seven numbers of
-- token_bucket_take. token_ns, window_ns, calendar: as there. blocked_ns: for how long the key is blocked.
--
-- The result is the same as of Row.Decision in internal/bucket: remaining is how many tokens are left.
-- retry_after is the time from "at" until n tokens are there and the key is not blocked, reset_after until
-- the bucket is full, both rounded up to a microsecond.
create or replace function pglimit.token_bucket_decision(
    taken bigint[], blocked_ns bigint, n bigint, token_ns bigint, window_ns bigint, calendar text,
    out allowed boolean, out granted bigint, out remaining bigint, out retry_after interval, out reset_after interval, out at timestamptz
)
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    ahead constant boolean := taken[5] > taken[1] + pglimit.step_ns();
    b bigint[] := case when ahead and (taken[6] > 0 or taken[7] = 0) then pglimit.token_bucket_read(taken[3:7], taken[1], taken[4]) else taken[3:7] end;
    now_ns constant bigint := case when ahead then taken[1] else greatest(taken[1], b[3]) end; -- not dated before the grants that it counts
    bucket constant bigint[] := case when b[2] > 0 and calendar is null then pglimit.token_bucket_read(b, now_ns, token_ns) end;
    used constant bigint := case when b[5] > now_ns then b[1] - b[5] else 0 end; -- in a calendar window
    retry_ns bigint;
    reset_ns bigint;
begin
    granted := taken[2];
    allowed := granted > 0;
    if calendar is not null then
        remaining := greatest(0, window_ns - used);
        retry_ns := case when remaining < n then b[5] - now_ns else 0 end;
        reset_ns := case when used > 0 then b[5] - now_ns else 0 end;
    else
        remaining := greatest(0, pglimit.tokens_there(coalesce(bucket[1], now_ns), now_ns, token_ns, greatest(0, window_ns - coalesce(bucket[4], 0))));
        retry_ns := pglimit.token_bucket_wait_ns(b, now_ns, n, token_ns, window_ns);
        reset_ns := pglimit.token_bucket_wait_ns(b, now_ns, window_ns / token_ns, token_ns, window_ns);
    end if;
    retry_after := ceil(greatest(blocked_ns, retry_ns) / 1000.0)::double precision * interval '1 microsecond';
    reset_after := ceil(reset_ns / 1000.0)::double precision * interval '1 microsecond';
    at := pglimit.time_of(now_ns);
end
$$;

-- Returns how long it takes from now_ns, in nanoseconds, until a bucket has ask tokens, if nobody takes
-- any. b is its row, not ahead of the clock by more than step_ns, or null. token_ns and window_ns are
-- prices of a token and of a burst. ask is at most a burst.
create or replace function pglimit.token_bucket_wait_ns(b pglimit.token_bucket, now_ns bigint, ask bigint, token_ns bigint, window_ns bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    rest_ns constant bigint := window_ns - ask * token_ns; -- the bucket may owe that much
    leased_ns constant bigint := pglimit.token_bucket_leased_ns(b, now_ns, token_ns);
    there_ns numeric;
    expiry_ns bigint;
begin
    if b.leased_ns > 0 then
        there_ns := case when leased_ns <= rest_ns then greatest(now_ns, pglimit.repaid_ns(b.full_ns, b.token_ns, b.at_ns, rest_ns - leased_ns, token_ns)) end;
        if there_ns < b.until_ns then
            return there_ns - now_ns;
        end if;
        -- Not while the lease is out. It counts as spent when it expires.
        expiry_ns := coalesce(b.until_ns, 0);
        b := pglimit.token_bucket_read(b, expiry_ns, b.token_ns);
    end if;
    there_ns := greatest(now_ns, expiry_ns, pglimit.repaid_ns(b.full_ns, b.token_ns, b.at_ns, rest_ns, token_ns));
    return least(there_ns, 9223372036854775807) - now_ns;
end
$$;

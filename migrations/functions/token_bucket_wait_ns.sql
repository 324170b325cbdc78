-- Returns how long it takes from now_ns, in nanoseconds, until a bucket has ask tokens, if nobody takes
-- any: at most the largest bigint. b is its row as of token_bucket_read, not ahead of the clock by more than
-- step_ns; zeros: there is none. token_ns and window_ns are prices of a token and of a burst. ask is at most a burst.
create or replace function pglimit.token_bucket_wait_ns(b bigint[], now_ns bigint, ask bigint, token_ns bigint, window_ns bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    rest_ns constant bigint := window_ns - ask * token_ns; -- the bucket may owe that much
    leased_ns bigint; -- at the price token_ns
    there_ns numeric;
    from_ns bigint := now_ns;
begin
    if b[2] = 0 then
        return 0;
    end if;
    if b[4] > 0 then
        leased_ns := pglimit.read_full_ns(b[4], b[2], 0, 0, token_ns);
        there_ns := case when leased_ns <= rest_ns then greatest(now_ns, pglimit.repaid_ns(b[1], b[2], b[3], rest_ns - leased_ns, token_ns)) end;
        if there_ns < b[5] then
            return there_ns - now_ns;
        end if;
        -- Not while the lease is out. It counts as spent when it expires.
        from_ns := greatest(now_ns, b[5]);
        b := pglimit.token_bucket_read(b, b[5], b[2]);
    end if;
    there_ns := greatest(from_ns, pglimit.repaid_ns(b[1], b[2], b[3], rest_ns, token_ns));
    return least(there_ns, 9223372036854775807) - now_ns;
end
$$;

-- Returns how long it takes from now_ns, in nanoseconds, until a bucket has ask tokens, if nobody takes
-- any: at most the largest bigint. b is its row as of token_bucket_read, not ahead of the clock by more than
-- step_ns; zeros: there is none. token_ns and window_ns are prices of a token and of a burst. ask is at most a burst.
create or replace function pglimit.token_bucket_wait_ns(b bigint[], now_ns bigint, ask bigint, token_ns bigint, window_ns bigint) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    rest_ns numeric; -- the bucket may owe that much
    from_ns bigint := now_ns;
    there_ns numeric := now_ns;
begin
    if b[4] = 0 and b[5] > 0 then -- of a calendar window, which gives all back at its end
        return least(greatest(0, b[5] - now_ns), pglimit.token_bucket_wait_ns(
            pglimit.token_bucket_read(b, now_ns, token_ns), now_ns, ask, token_ns, window_ns));
    end if;
    while b[2] > 0 loop
        rest_ns := window_ns - ask * token_ns - pglimit.read_full_ns(b[4], b[2], 0, 0, token_ns);
        -- The inverse of read_full_ns: the bucket has been refilled at the faster of both prices, so the earlier of two times counts.
        there_ns := greatest(from_ns, least(
            b[1] - div(rest_ns * b[2], token_ns),
            b[3] - rest_ns + div(greatest(0, b[1] - b[3]) * token_ns::numeric + b[2] - 1, b[2])));
        exit when b[4] = 0 or rest_ns >= 0 and there_ns < b[5];
        -- Not while the lease is out. It counts as spent when it expires.
        from_ns := greatest(now_ns, b[5]);
        b := pglimit.token_bucket_read(b, greatest(b[3], b[5]), b[2]); -- at_ns of a row that was written by hand may be later
    end loop;
    return least(there_ns, 9223372036854775807) - now_ns;
end
$$;

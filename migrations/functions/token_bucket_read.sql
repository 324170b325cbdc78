-- Returns a row of token_bucket as of now_ns and at the price token_ns of a token: an expired
-- lease counts as spent when it expired, and another price in the row is converted. The row must
-- not be ahead of the clock by more than step_ns. Without a lease, its until_ns means nothing.
--
-- What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(inout b pglimit.token_bucket, now_ns bigint, token_ns bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if b.leased_ns > 0 and coalesce(b.until_ns, 0) <= now_ns then
        b.full_ns := least(9223372036854775807, greatest(b.full_ns, b.until_ns)::numeric + b.leased_ns);
        b.at_ns := greatest(b.at_ns, b.until_ns);
        b.leased_ns := null;
    end if;
    b.full_ns := pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, token_ns);
    b.leased_ns := nullif(pglimit.read_full_ns(b.leased_ns, b.token_ns, 0, 0, token_ns), 0); -- a debt of which nothing is refilled
    b.token_ns := token_ns;
    b.at_ns := greatest(b.at_ns, now_ns);
end
$$;

-- Returns a row of token_bucket as of now_ns and at the price token_ns of a token: an expired
-- lease counts as spent when it expired, and another price in the row is converted. The row must
-- not be ahead of the clock by more than step_ns.
--
-- A row that owes more than any window is returned without a lease and with the largest full_ns
-- that can be written: it denies every request.
create or replace function pglimit.token_bucket_read(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns pglimit.token_bucket
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    leased numeric := coalesce(b.leased_ns, 0); -- numeric: no sum or product of it overflows
begin
    if leased > 0 and coalesce(b.until_ns <= now_ns, true) then
        b.full_ns := least(9223372036854775807, greatest(b.full_ns, b.until_ns) + leased);
        b.at_ns := greatest(b.at_ns, b.until_ns);
        leased := 0;
    end if;
    if b.token_ns <> token_ns then
        b.full_ns := pglimit.converted_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, token_ns);
        leased := pg_catalog.div(leased * token_ns + b.token_ns - 1, b.token_ns);
        b.token_ns := token_ns;
    end if;
    if leased + greatest(0, b.full_ns - now_ns) > 7000000000000000000 then
        b.full_ns := 9223372036854775807;
        leased := 0;
    end if;
    b.at_ns := greatest(b.at_ns, now_ns);
    b.leased_ns := nullif(leased, 0);
    if leased = 0 then
        b.until_ns := null;
    end if;
    return b;
end
$$;

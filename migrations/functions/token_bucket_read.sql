-- A row of token_bucket as it reads at now_ns to somebody who pays token_ns for a token:
-- a lease that has expired counts as spent since it expired, and what was written under
-- another limit is converted. The row must not be ahead of the clock.
--
-- What owes more than any window comes back owing as much as can be written, and without
-- a lease: it denies everybody.
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

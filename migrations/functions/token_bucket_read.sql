-- Returns what a row of token_bucket means as of now_ns, or of its last write if that is later, to a caller who pays
-- token_ns for a token. This is the one function that reads the notes of the last write:
--
--   - The row is ahead of the clock: the clock has stepped back since the write. The bucket owes now what it
--     owed then, so all times of the row move by the step.
--   - Its lease has expired: its tokens count as spent when it expired.
--   - It has another price of a token: used tokens stay used, see read_full_ns.sql.
--
-- b and the result are five numbers: full_ns, token_ns, at_ns, leased_ns (0: no lease) and until_ns. full_ns of the
-- result is not before its at_ns, and that is not before now_ns. What does not fit a bigint becomes the largest
-- one, which denies every request.
create or replace function pglimit.token_bucket_read(b bigint[], now_ns bigint, token_ns bigint) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    full_ns bigint := b[1];
    at_ns bigint := b[3];
    leased_ns bigint := b[4];
    until_ns bigint := b[5];
begin
    if at_ns > now_ns + pglimit.step_ns() then
        full_ns := greatest(1, full_ns - (at_ns - now_ns));
        until_ns := greatest(0, until_ns - (at_ns - now_ns));
        at_ns := now_ns;
    end if;
    now_ns := greatest(now_ns, at_ns);
    if leased_ns > 0 and until_ns <= now_ns then
        full_ns := least(9223372036854775807, greatest(full_ns, until_ns)::numeric + leased_ns);
        at_ns := greatest(at_ns, until_ns);
        leased_ns := 0;
    end if;
    return array[
        greatest(pglimit.read_full_ns(full_ns, b[2], at_ns, now_ns, token_ns), now_ns), token_ns, now_ns,
        pglimit.read_full_ns(leased_ns, b[2], 0, 0, token_ns), case when leased_ns > 0 then until_ns else 0 end]; -- a lease is a debt of which nothing is refilled
end
$$;

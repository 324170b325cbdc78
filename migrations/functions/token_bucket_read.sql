-- Returns what a row of token_bucket means as of now_ns, or of its last write if that is later, to a caller who pays
-- token_ns for a token, or counts in a calendar window that ends at ends_ns (null: does not). This is the one function
-- that reads the notes of the last write:
--
--   - The row is ahead of the clock: the clock has stepped back since the write. The bucket owes now what it
--     owed then, so all times of the row move by the step.
--   - It is of a calendar window: full_ns - until_ns tokens were taken, and all come back at until_ns, its end. If the
--     caller's window ends at another time, they stay used until the later end. A bucket owes them since the last
--     write. The end does not move with the clock. But after a step back by more than window_step_ns it is the
--     caller's, and to a caller without a window the tokens are owed from now on: or a clock that was a year ahead
--     locks out for a year.
--   - Its lease has expired: its tokens count as spent when it expired.
--   - It has another price of a token: used tokens stay used, see read_full_ns.sql. In a window all that the bucket
--     owes or has leased counts.
--
-- b and the result are five numbers: full_ns, token_ns, at_ns, leased_ns (0: no lease) and until_ns (0: neither a lease
-- nor a window). All zeros: there is no row. full_ns of the result is not before its at_ns, or the end of its window,
-- and that is not before now_ns. What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(
    b bigint[], now_ns bigint, token_ns bigint, ends_ns bigint default null
) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    full_ns bigint;
    at_ns bigint;
    leased_ns bigint;
    until_ns bigint;
    used numeric; -- tokens
begin
    if b[3] = 0 then
        return array[coalesce(ends_ns, now_ns), token_ns, now_ns, 0, coalesce(ends_ns, 0)];
    elsif b[4] = 0 and b[5] = 0 and ends_ns is null and b[3] - pglimit.step_ns() <= now_ns then
        -- As a rule: no case below applies. (In each transaction, Postgres prepares each expression that it meets.)
        now_ns := greatest(now_ns, b[3]);
        full_ns := greatest(now_ns, pglimit.read_full_ns(b[1], b[2], b[3], now_ns, token_ns));
        return array[full_ns, token_ns, now_ns, 0, 0];
    end if;
    full_ns := b[1]; at_ns := b[3]; leased_ns := b[4]; until_ns := b[5];
    if leased_ns = 0 and until_ns > 0 then
        used := full_ns - until_ns;
        if at_ns - pglimit.window_step_ns() > now_ns then
            until_ns := coalesce(ends_ns, until_ns);
        end if;
        at_ns := case when at_ns - pglimit.step_ns() > now_ns then now_ns else at_ns end;
        now_ns := greatest(now_ns, at_ns);
        used := case when until_ns > now_ns then used else 0 end;
        if ends_ns is null then
            return array[greatest(now_ns, least(9223372036854775807, at_ns + used * token_ns)), token_ns, now_ns, 0, 0];
        end if;
        ends_ns := case when until_ns > now_ns then greatest(until_ns, ends_ns) else ends_ns end;
        return array[least(9223372036854775807, ends_ns + used), token_ns, now_ns, 0, ends_ns];
    end if;
    if at_ns - pglimit.step_ns() > now_ns then
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
    if ends_ns is not null then
        used := div(greatest(0, full_ns - now_ns)::numeric + b[2] - 1, b[2]) + div(leased_ns::numeric + b[2] - 1, b[2]);
        return array[least(9223372036854775807, ends_ns + used), token_ns, now_ns, 0, ends_ns];
    end if;
    return array[
        greatest(pglimit.read_full_ns(full_ns, b[2], at_ns, now_ns, token_ns), now_ns), token_ns, now_ns,
        pglimit.read_full_ns(leased_ns, b[2], 0, 0, token_ns), -- a lease is a debt of which nothing is refilled
        case when leased_ns > 0 then until_ns else 0 end];
end
$$;

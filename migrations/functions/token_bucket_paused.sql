-- Returns what a row of token_bucket means to a caller if it was paused, until left_ns from now on or before (below 0),
-- and nobody has taken from it since the end: to what token_bucket_read returns, that there is one token at the end of
-- the pause, or later, if the bucket owes more, and the others come back behind it. So what is taken ahead is due behind
-- the pause, one token after another. Of a calendar window nothing is there until the end of the pause, or of the
-- window, if all is used.
--
-- The other parameters: as for token_bucket_read. window_ns: of a burst.
create or replace function pglimit.token_bucket_paused(
    b bigint[], left_ns bigint, now_ns bigint, token_ns bigint, window_ns bigint, ends_ns bigint
) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
begin
    b := pglimit.token_bucket_read(b, now_ns, token_ns, ends_ns);
    if ends_ns is null then
        b[1] := greatest(b[1], least(9223372036854775807, b[3]::numeric + left_ns + window_ns - token_ns));
    elsif left_ns > 0 and (b[1] - b[5] < window_ns or b[5] <= b[3] + left_ns) then
        b[5] := least(b[3] + left_ns, 9223372036854775807 - window_ns);
        b[1] := b[5] + window_ns;
    end if;
    return b;
end
$$;

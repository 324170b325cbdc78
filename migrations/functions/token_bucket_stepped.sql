-- Returns a row of token_bucket, five numbers as for token_bucket_read; if the clock has stepped back since it was written,
-- corrected so that the bucket owes now what it owed then: all times of the row move by the step.
--
-- The end of a calendar window stays where it is, after a step that is not longer than a day or what was left of the window: a
-- window that is used up stays so. After a longer one it moves too: a clock that was a year ahead locks nobody out for a year.
create or replace function pglimit.token_bucket_stepped(b bigint[], now_ns bigint) returns bigint[]
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    by_ns constant bigint := b[3] - now_ns;
begin
    return case
        when by_ns <= pglimit.step_ns() then b
        when b[4] = 0 and b[5] > 0 and by_ns <= least(86400000000000, b[5] - b[3]) then array[b[1], b[2], now_ns, 0, b[5]]
        else array[greatest(1, b[1] - by_ns), b[2], now_ns, b[4], greatest(0, b[5] - by_ns)]
    end;
end
$$;

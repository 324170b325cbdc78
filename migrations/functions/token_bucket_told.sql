-- Returns the seven numbers of token_bucket_take. b: the row after the call, as for token_bucket_read. granted: the
-- tokens that the call took. The decision is dated no earlier than the grants that it counts, unless the clock has
-- stepped back since. A bucket's row is told to a caller with a calendar as it means in that window.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_told(
    b bigint[], granted bigint, now_ns bigint, token_ns bigint, ends_ns bigint
) returns bigint[]
language sql immutable parallel safe
return array[case when b[3] > now_ns + pglimit.step_ns() then now_ns else greatest(now_ns, b[3]) end, granted] || case
    when b[3] > 0 and ends_ns is not null and (b[4] > 0 or b[5] = 0 or b[3] > now_ns + pglimit.window_step_ns())
        then pglimit.token_bucket_read(b, now_ns, token_ns, ends_ns)
    else b
end;

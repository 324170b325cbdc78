-- Returns for how long after now_ns a key is blocked: 0 if it is not, or has no row (nulls). until_ns and at_ns are
-- those of its row. If the clock has stepped back since it was written, that is as long as it was then.
create or replace function pglimit.token_bucket_blocked_ns(until_ns bigint, at_ns bigint, now_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, until_ns - case when at_ns > now_ns + pglimit.step_ns() then at_ns else now_ns end);

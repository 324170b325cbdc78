-- Returns for how long after now_ns a key is blocked: 0 if it is not, or has no row (b is null). If
-- the clock has stepped back since the row was written, that is as long as it was then.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_blocked_ns(b pglimit.token_bucket_blocks, now_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, coalesce(b.until_ns - case when b.at_ns > now_ns + pglimit.step_ns() then b.at_ns else now_ns end, 0));

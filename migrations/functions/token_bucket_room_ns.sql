-- Returns the window without what leases set aside, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst. A lease of more than window_ns counts as window_ns, which denies too, and
-- no sum overflows.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_room_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return window_ns - least(window_ns, coalesce(pglimit.token_bucket_leased_ns(b, now_ns, token_ns), 0));

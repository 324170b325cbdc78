-- Returns how much of the room (see token_bucket_room_ns) can be taken, in nanoseconds; negative, if
-- the bucket owes more. Without a row (b is null) the bucket is full.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_free_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return pglimit.token_bucket_room_ns(b, now_ns, token_ns, window_ns) - greatest(0, pglimit.token_bucket_full_ns(b, now_ns, token_ns) - now_ns);

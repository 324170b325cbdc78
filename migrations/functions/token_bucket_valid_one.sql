-- Returns true if these can be parameters of token_bucket_take. A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_valid_one(
    key text, limiter text, token_ns bigint, window_ns bigint, want bigint, unit bigint
) returns boolean
language sql immutable parallel safe
return key is not null and limiter is not null and window_ns <= pglimit.max_window_ns()
    and token_ns > 0 and unit between 1 and window_ns / nullif(token_ns, 0) and (want = 0 or unit <= want);

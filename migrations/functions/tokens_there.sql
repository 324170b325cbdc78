-- How many tokens a bucket has (negative, or 0: none) that is full again at full_ns: a window holds so many tokens, less those that
-- have not come back by from_ns, which is the clock; or, in a calendar window, its end, so that nothing comes back before.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.tokens_there(full_ns bigint, from_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe return (window_ns - greatest(0, full_ns - from_ns)) / token_ns;

-- Returns how many tokens a bucket has that is full again at full_ns (0 or less: none): those of a window, less those
-- that have not come back by from_ns. That is the clock; or the end of a calendar window, before which nothing comes
-- back.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.tokens_there(
    full_ns bigint, from_ns bigint, token_ns bigint, window_ns bigint
) returns bigint
language sql immutable parallel safe
return (window_ns - greatest(0, full_ns - from_ns)) / token_ns;

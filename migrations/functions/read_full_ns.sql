-- Returns when a bucket is full again, as of now_ns and at the price token_ns of a token. That is
-- full_ns of its row, converted if the row was written at another price (its_token_ns). Without
-- a row (nulls) the bucket is full: 0.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.read_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else pglimit.converted_full_ns(full_ns, its_token_ns, at_ns, now_ns, token_ns)
end;

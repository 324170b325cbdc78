-- Returns when a bucket is full again, as of now_ns and at the price token_ns of a token. That is
-- full_ns of its row, converted if the row was written at another price (its_token_ns). Without
-- a row (nulls) the bucket is full: 0.
--
-- Used tokens stay used, as tokens, rounded up. Since at_ns they have been refilled at the faster of both
-- rates, so the bucket owes the less of two: what it owes at the old price, and what it owed at at_ns, less
-- what was refilled since then at the new one. (Both in tokens times both prices, divided at the end: numeric,
-- because that does not fit a bigint. The largest bigint denies every request.)
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.read_full_ns(full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else least(9223372036854775807, greatest(now_ns, at_ns) + div(
        greatest(0, least(
            (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
            (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
        )) + its_token_ns - 1, its_token_ns))::bigint
end;

-- Returns when a bucket owes no more than rest_ns, at the price token_ns of a token, if nobody takes
-- any; a time before at_ns means at_ns. full_ns, its_token_ns and at_ns are of its row. Null without a
-- row (nulls): it owes nothing.
--
-- It is the inverse of pglimit.converted_full_ns: since at_ns the bucket has been refilled at the
-- faster of both prices, so the earlier of two times counts.
create or replace function pglimit.repaid_ns(full_ns bigint, its_token_ns bigint, at_ns bigint, rest_ns bigint, token_ns bigint) returns numeric
language sql immutable parallel safe
return least(
    full_ns - div(rest_ns::numeric * its_token_ns::numeric, token_ns::numeric),
    at_ns - rest_ns::numeric + div(greatest(0, full_ns - at_ns) * token_ns::numeric + its_token_ns - 1, its_token_ns::numeric));

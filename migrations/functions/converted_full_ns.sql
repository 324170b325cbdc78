-- full_ns of a row that was written at the price of its_token_ns, as it reads to somebody
-- who pays token_ns for a token. What was used stays used, in tokens, rounded up. Since
-- at_ns it has flowed back at the faster of both rates. At most the largest bigint, which
-- denies everybody.
--
-- Numeric, because the product of a time and a price does not fit a bigint.
create or replace function pglimit.converted_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return least(9223372036854775807, greatest(now_ns, at_ns) + div(
    greatest(0, least(
        (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
        (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
    )) + its_token_ns - 1, its_token_ns))::bigint;

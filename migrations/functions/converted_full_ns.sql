-- Converts full_ns of a row to another price of a token. full_ns, its_token_ns (the old price)
-- and at_ns are the row's; now_ns is the clock; token_ns is the new price.
--
-- Used tokens stay used, as tokens, rounded up. Since at_ns they have been refilled at the faster of both
-- rates, so the bucket owes the less of two: what it owes at the old price, and what it owed at at_ns, less
-- what was refilled since then at the new one. (Both in tokens times both prices, divided at the end.)
-- Returns at most the largest bigint, which denies every request. Reckons in numeric, because the
-- product of a time and a price does not fit a bigint.
create or replace function pglimit.converted_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return least(9223372036854775807, greatest(now_ns, at_ns) + div(
    greatest(0, least(
        (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
        (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
    )) + its_token_ns - 1, its_token_ns))::bigint;

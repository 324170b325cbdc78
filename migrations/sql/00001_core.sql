-- What every strategy shares: the clock and the arithmetic.
--
-- A bucket is counted in parts, so that nothing is ever rounded: a token has
-- token_parts parts, and refill_parts of them flow back every microsecond (three
-- tokens per second: 1,000,000 and 3). Its debt is what was taken and has not
-- flowed back since; a full bucket owes nothing, an empty one burst * token_parts.
-- No row means a full bucket.
--
-- The functions are single expressions with bodies bound when they are created:
-- they do not depend on anybody's search_path, and the planner inlines them. Programs
-- call them, so one that changes gets a new name (_v2) and the old one stays until
-- no old program runs.

-- +goose Up
comment on schema pglimit is 'pglimit, a rate limiter: see the view pglimit.buckets';

-- The database's clock in microseconds since 1970.
create function pglimit.clock_us_v1() returns bigint
language sql volatile parallel safe
return (extract(epoch from clock_timestamp()) * 1000000)::bigint;

-- What is left of a debt after so many microseconds of refilling. A clock that
-- stepped back refills nothing. The least() keeps the product from overflowing.
create function pglimit.drain_v1(debt bigint, elapsed_us bigint, refill_parts bigint) returns bigint
language sql immutable parallel safe
return greatest(0, debt - least(greatest(0, elapsed_us), debt / refill_parts + 1) * refill_parts);

-- A debt in parts of another size, rounded up. It may be too large for a bigint.
create function pglimit.rescale_v1(debt bigint, to_parts bigint, from_parts bigint) returns numeric
language sql immutable parallel safe
return div(debt::numeric * to_parts + from_parts - 1, from_parts);

-- The debt at now_us of a bucket that was last written at at_us, in parts of a limit
-- that may have changed since. Then what was used stays used, at most the new burst;
-- and it flows back since at_us as the old limit says or as the new one does,
-- whichever leaves less: a key that used up a strict limit does not have to wait for
-- it once the limit is looser. No row (all null) owes nothing.
create function pglimit.owed_v1(
    debt bigint, at_us bigint, its_token_parts bigint, its_refill_parts bigint,
    now_us bigint, token_parts bigint, refill_parts bigint, burst bigint
) returns bigint
language sql immutable parallel safe
return case
    when debt is null then 0
    when its_token_parts = token_parts and its_refill_parts = refill_parts
        then pglimit.drain_v1(least(debt, burst * token_parts), now_us - at_us, refill_parts)
    else least(
        pglimit.rescale_v1(pglimit.drain_v1(debt, now_us - at_us, its_refill_parts), token_parts, its_token_parts),
        pglimit.drain_v1(
            least(burst * token_parts, pglimit.rescale_v1(debt, token_parts, its_token_parts))::bigint,
            now_us - at_us, refill_parts))::bigint
    end;

-- How many of the tokens wanted can be granted, in whole multiples of unit, by a
-- bucket that owes that much.
create function pglimit.grantable_v1(want bigint, unit bigint, owed bigint, token_parts bigint, burst bigint) returns bigint
language sql immutable parallel safe
return least(want, (burst * token_parts - owed) / token_parts) / unit * unit;

-- When a bucket is full again if nobody takes.
create function pglimit.full_us_v1(debt bigint, at_us bigint, refill_parts bigint) returns bigint
language sql immutable parallel safe
return at_us + (debt + refill_parts - 1) / refill_parts;

-- +goose Down
drop function pglimit.full_us_v1(bigint, bigint, bigint);
drop function pglimit.grantable_v1(bigint, bigint, bigint, bigint, bigint);
drop function pglimit.owed_v1(bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint);
drop function pglimit.rescale_v1(bigint, bigint, bigint);
drop function pglimit.drain_v1(bigint, bigint, bigint);
drop function pglimit.clock_us_v1();
comment on schema pglimit is null;

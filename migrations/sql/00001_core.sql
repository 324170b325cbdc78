-- What every strategy shares: the clock and the arithmetic.
--
-- A bucket is counted in parts, so that nothing is ever rounded: a token has
-- token_parts parts, and refill_parts of them flow back every microsecond (three
-- tokens per second: 1,000,000 and 3). Its debt is what was taken and has not
-- flowed back since; a full bucket owes nothing, an empty one burst * token_parts.
-- No row means a full bucket.
--
-- The functions are single expressions with bodies bound when they are created:
-- they do not depend on anybody's search_path, and the planner inlines them.

-- +goose Up
comment on schema pglimit is 'pglimit, a rate limiter: see the view pglimit.buckets';

-- The database's clock in microseconds since 1970.
create function pglimit.clock_us() returns bigint
language sql volatile parallel safe
return (extract(epoch from clock_timestamp()) * 1000000)::bigint;

-- The debt at now_us of a bucket last written at at_us, in parts of a limit that
-- may have changed since. Refilling followed the limit under which the row was
-- written; what was used stays used, at most the new burst. A clock that stepped
-- back refills nothing. No row (all null) owes nothing. The least() around the
-- elapsed time keeps the product from overflowing.
create function pglimit.owed(
    debt bigint, at_us bigint, its_token_parts bigint, its_refill_parts bigint,
    now_us bigint, token_parts bigint, burst bigint
) returns bigint
language sql immutable parallel safe
return least(
    burst * token_parts,
    coalesce(case when its_token_parts = token_parts
        then greatest(0, debt - least(greatest(0, now_us - at_us), debt / its_refill_parts + 1) * its_refill_parts)
        else ceil(greatest(0, debt - least(greatest(0, now_us - at_us), debt / its_refill_parts + 1) * its_refill_parts)::numeric
            * token_parts / its_token_parts)
    end, 0)
)::bigint;

-- How many of the tokens wanted can be granted, in whole multiples of unit, by a
-- bucket that owes that much.
create function pglimit.grantable(want bigint, unit bigint, owed bigint, token_parts bigint, burst bigint) returns bigint
language sql immutable parallel safe
return least(want, (burst * token_parts - owed) / token_parts) / unit * unit;

-- When a bucket is full again if nobody takes.
create function pglimit.full_us(debt bigint, at_us bigint, refill_parts bigint) returns bigint
language sql immutable parallel safe
return at_us + (debt + refill_parts - 1) / refill_parts;

-- +goose Down
drop function pglimit.full_us(bigint, bigint, bigint);
drop function pglimit.grantable(bigint, bigint, bigint, bigint, bigint);
drop function pglimit.owed(bigint, bigint, bigint, bigint, bigint, bigint, bigint);
drop function pglimit.clock_us();
comment on schema pglimit is null;

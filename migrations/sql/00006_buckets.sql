-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';

-- +goose Up
create view pglimit.buckets as
select
    b.strategy, b.limiter, b.key,
    b.burst - ceil(pglimit.owed_v1(b.debt, b.at_us, b.token_parts, b.refill_parts, pglimit.clock_us_v1(), b.token_parts, b.refill_parts, b.burst)::numeric
        / b.token_parts)::bigint as tokens_left,
    b.burst,
    (b.refill_parts::numeric / b.token_parts * 1000000)::double precision as tokens_per_second,
    to_timestamp(b.at_us / 1000000.0) as last_taken_at,
    to_timestamp(pglimit.full_us_v1(b.debt, b.at_us, b.refill_parts) / 1000000.0) as full_at
from (
    select 'token_bucket' as strategy, key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.token_bucket
    union all
    select 'upsert', key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.upsert
    union all
    select 'for_update_nowait', key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.for_update_nowait
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';

-- +goose Down
drop view pglimit.buckets;

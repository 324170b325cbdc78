-- The keys that are denied and blocked, for a person in psql:
--     select * from pglimit.blocks where blocked_until is not null;
create or replace view pglimit.blocks as
select
    'token_bucket' as strategy, b.limiter, b.key,
    b.denials, b.level,
    case when pglimit.token_bucket_blocked_ns(b.until_ns, b.at_ns, now_ns) > 0
        then to_timestamp((now_ns + pglimit.token_bucket_blocked_ns(b.until_ns, b.at_ns, now_ns)) / 1000000000.0) end as blocked_until,
    to_timestamp(b.at_ns / 1000000000.0) as last_counted_at
from (select pglimit.clock_ns() as now_ns offset 0) clock
cross join pglimit.token_bucket_blocks b;
comment on view pglimit.blocks is 'One row per key with denials that were counted and not swept since: denials in the span that goes on, level (how many blocks in a row), blocked_until (null: not blocked)';

-- What is used of a key. $1 limiter; $2 key. Locks nothing. Buckets of exclusion_range, which need not be migrated, are
-- not among them.
select strategy, tokens_owed::text as used, last_taken_at, full_at, paused_until
from pglimit.buckets where limiter = $1 and key = $2
union all
select strategy, used::text, last_taken_at, full_at, null from pglimit.windows where limiter = $1 and key = $2
union all
select 'warm_up', 'warmth ' || warmth, last_taken_at, cold_at, null from pglimit.warm_ups where limiter = $1 and key = $2
order by strategy

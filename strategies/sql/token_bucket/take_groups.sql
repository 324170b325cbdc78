-- Takes for groups of requests: migrations/functions/token_bucket_take_groups.sql, which explains
-- the parameters and results. $11: whether the commit may be relaxed.
-- Locks the rows that grant tokens, or all rows ($9), in the order of the keys. If all groups are denied:
-- none.
select t.now_ns, t.granted, t.usual, t.rest,
    case when $11::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take_groups($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::boolean, $10::boolean) t

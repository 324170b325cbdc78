-- Takes from many buckets: migrations/functions/token_bucket_take_many.sql, which explains the
-- parameters and results.
-- Locks the rows that grant tokens: first those of the usual case, in the order of the keys, then the
-- rest, for which it does not wait.
select t.now_ns, t.usual, t.rest,
    case when $9::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take_many($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $10::bigint[]) t

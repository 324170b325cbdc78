-- Takes from one bucket: migrations/functions/token_bucket_take.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens wanted, $6 unit,
-- $7 and $8 tokens wanted and units of several requests (null: there is one request; else $5 is the
-- sum of $7, and $6 is 1),
-- $9 whether the commit may be relaxed, $10 whether to give up after 20 ms if another call holds
-- the row (SQLSTATE 55P03), $11 how many nanoseconds ahead each of these requests may take (null:
-- none does).
-- Locks the row if tokens may be granted. Returns tokens granted, the time of the decision, and
-- the row: zeros if there is none.
select t.granted, t.now_ns, coalesce((t.bucket).full_ns, 0::bigint), coalesce((t.bucket).token_ns, 0::bigint), coalesce((t.bucket).at_ns, 0::bigint),
    coalesce((t.bucket).leased_ns, 0::bigint), coalesce((t.bucket).until_ns, 0::bigint),
    case when $9::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint[], $8::bigint[], $11::bigint[], $10::boolean) t

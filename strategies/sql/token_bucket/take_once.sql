-- Takes from one bucket for a request with an ID: migrations/functions/token_bucket_take_once.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens wanted, $6 the ID,
-- $7 nanoseconds that a grant is kept, $8 whether the commit may be relaxed, $9 whether to give up
-- after 20 ms if another call holds the row (SQLSTATE 55P03).
-- Locks the row if tokens may be granted. Returns tokens granted to the ID, now or before, the
-- window of that grant, the time of the decision, and the row after it: zeros if there is none.
select (t.answer).granted, coalesce((t.answer).window_ns, 0::bigint), t.now_ns, coalesce((t.answer).full_ns, 0::bigint), coalesce((t.answer).token_ns, 0::bigint),
    coalesce((t.answer).at_ns, 0::bigint), coalesce((t.answer).leased_ns, 0::bigint), coalesce((t.answer).lease_until_ns, 0::bigint),
    case when $8::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take_once($1::text, $2::text, $6::text, $3::bigint, $4::bigint, $5::bigint, $7::bigint, $9::boolean) t

-- Takes from one bucket, unless the key is blocked; counts a denial:
-- migrations/functions/token_bucket_take_or_block.sql.
-- $1 key, $2 limiter, $3 nanoseconds of a token, $4 of the window, $5 tokens wanted, $6 how many
-- denials block the key, $7 nanoseconds within which, $8 how long the first block lasts, $9 the
-- longest one, $10 after which time without a block that begins anew, $11 whether the commit may be
-- relaxed, $12 whether to give up after 20 ms if another call holds a row (SQLSTATE 55P03).
-- Locks the bucket's row if tokens may be granted, then, after a denial, that of the count. Returns
-- tokens granted, the time of the decision, for how long the key is blocked (0: it is not), and the
-- bucket's row: zeros if there is none.
select t.granted, t.now_ns, t.blocked_ns, coalesce((t.bucket).full_ns, 0::bigint), coalesce((t.bucket).token_ns, 0::bigint), coalesce((t.bucket).at_ns, 0::bigint),
    coalesce((t.bucket).leased_ns, 0::bigint), coalesce((t.bucket).until_ns, 0::bigint),
    case when $11::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take_or_block(
    $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $12::boolean) t

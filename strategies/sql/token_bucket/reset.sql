-- Fills a bucket, and ends the block of its key: migrations/functions/reset.sql.
-- $1 key, $2 limiter.
-- Locks both rows. Returns false: where row security hides rows, the function fails. The number is not asked for.
select false, 0::bigint from pglimit.reset($2::text, $1::text)

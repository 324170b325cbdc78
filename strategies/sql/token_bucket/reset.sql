-- Fills a bucket, and ends the block of its key: migrations/functions/reset.sql.
-- $1 key, $2 limiter.
-- Locks both rows. Returns nothing of use.
select pglimit.reset($2::text, $1::text)

-- Waits until each of the rows was free, one after another, and holds none of them after it:
-- migrations/functions/token_bucket_wait.sql. $3: as long as it takes. Returns the numbers of those
-- that were not free.
select pglimit.token_bucket_wait($1::text[], $2::text[], $3::boolean), pg_catalog.set_config('synchronous_commit', 'off', true)

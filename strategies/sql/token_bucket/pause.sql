-- Pauses a bucket: migrations/functions/token_bucket_pause.sql, which explains parameters, locks and result.
-- $6: the calendar of the limit, or null. $7: whether the commit may be relaxed.
select pglimit.token_bucket_pause($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::text, $7::boolean)

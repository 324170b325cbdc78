-- Pauses a bucket: migrations/functions/token_bucket_pause.sql, which explains parameters, locks and result.
select pglimit.token_bucket_pause($1::text, $2::text, $3::bigint, $4::boolean)

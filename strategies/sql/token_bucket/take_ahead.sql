-- Takes from one bucket, also what comes back within a time: migrations/functions/token_bucket_take.sql, which
-- explains parameters, locks and results. $9: the calendar of the limit, or null. $10: whether the commit may be relaxed.
select pglimit.token_bucket_take($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $8::text, $9::text, $10::boolean, $7::bigint)

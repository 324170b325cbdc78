-- Takes from one bucket: migrations/functions/token_bucket_take.sql, which explains parameters, locks and
-- results. $8: whether the commit may be relaxed. $9: the calendar of the limit, or null: see window_end_ns.sql.
select pglimit.token_bucket_take($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::text, $9::text, $8::boolean)

-- Settles a lease and takes the next one: migrations/functions/token_bucket_lease.sql, which explains parameters,
-- locks and results. $11: whether the commit may be relaxed.
select pglimit.token_bucket_lease(
        $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::boolean)

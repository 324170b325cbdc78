-- Takes from one bucket, unless the key is blocked; counts a denial:
-- migrations/functions/token_bucket_take_or_block.sql, which explains parameters, locks and results. $12: whether
-- the commit may be relaxed.
select pglimit.token_bucket_take_or_block(
        $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::text),
    case when $12::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

-- Takes from one bucket, unless the key is blocked; counts a denial: migrations/functions/token_bucket_take.sql,
-- which explains parameters, locks and results. $7: the rule. $8: whether the commit may be relaxed.
select pglimit.token_bucket_take($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $5::bigint, $6::text, $7::bigint[]),
    case when $8::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end

-- Takes from one bucket, unless the key is blocked; counts a denial: migrations/functions/token_bucket_take_or_block.sql,
-- which explains parameters, locks and results. $7 to $11: the rule. $12: whether the commit may be relaxed.
-- $13: as $9 of take.sql.
select t.taken, t.blocked_ns
from pglimit.token_bucket_take_or_block($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $5::bigint, $6::text,
    array[$7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::bigint], $13::text, $12::boolean) t

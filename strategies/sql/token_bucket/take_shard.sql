-- Takes from many buckets of one shard, where Citus distributes the table: migrations/functions/citus/token_bucket_take_shard.sql,
-- which explains parameters, locks and results. $12: whether the commit may be relaxed. $13: as $14 of take_many.sql. Citus
-- sends it to the node of the key $1 if the function is all that is selected from.
select t.usual, t.rest, t.grants
from pglimit.token_bucket_take_shard(
    $1::text, $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text, $13::text[], $12::boolean) t

-- Takes from many buckets, for requests by themselves or in groups: migrations/functions/token_bucket_take_many.sql,
-- which explains parameters, locks and results. $13: whether the commit may be relaxed. $14: the
-- calendars of the limits, null where there is none; null: there are none.
select t.usual, t.rest, t.grants, case when $13::boolean then pg_catalog.set_config('synchronous_commit', 'off', true) end
from pglimit.token_bucket_take_many(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],
    $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::boolean, $12::text, $14::text[]) t

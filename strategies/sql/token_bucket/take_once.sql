-- Takes from one bucket for a request with an ID: migrations/functions/token_bucket_take_once.sql, which explains
-- parameters, locks and results. $9: whether the commit may be relaxed. $10: as $9 of take.sql.
select t.taken, t.window_ns
from pglimit.token_bucket_take_once($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::text, $10::text, $9::boolean) t

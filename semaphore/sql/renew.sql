-- Renews a permit: pglimit.renew. $1 limiter, $2 key, $3 holder, $4 microseconds that it lasts.
-- Locks the row. Returns whether it is still held.
select pglimit.renew($1::text, $2::text, $3::text, $4::bigint operator(pg_catalog.*) interval '1 microsecond')

-- Returns rows of pglimit.top as a JSON array, those with the largest numbers in $column first, and none with 0 there.
-- $1 limiter, or null: all; $2 how many.
select coalesce(pg_catalog.jsonb_agg(pg_catalog.to_jsonb(t.*) order by t.$column desc, t.limiter, t.key), '[]')::text
from (
    select * from pglimit.top
    where $column > 0 and ($1::text is null or limiter = $1::text)
    order by $column desc, limiter, key limit $2::bigint
) t

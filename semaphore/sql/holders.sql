-- Lists who holds a key, oldest first. $1 limiter, $2 key.
-- Locks nothing.
select pg_catalog.array_agg(h.holder order by h.token), pg_catalog.array_agg(h.token order by h.token), pg_catalog.array_agg(h.weight order by h.token),
    pg_catalog.array_agg(pglimit.ns_of(h.since) order by h.token), pg_catalog.array_agg(pglimit.ns_of(h.expires_at) order by h.token)
from pglimit.holders h
where h.limiter operator(pg_catalog.=) $1::text and h.key operator(pg_catalog.=) $2::text

-- Returns the last changes, the latest first: of all limits, of those of a limiter, or of the rules of it that are for
-- a key. Null: any.
create or replace function pglimit.limit_history(
    limiter text default null, key text default null, last bigint default null
) returns setof pglimit.limits_history
language sql stable set search_path = '' set row_security = off set jit = off as $$
    select h.* from pglimit.limits_history h
    where ($1 is null or h.limiter = $1 or h.limiter is null)
        and ($2 is null or h.key = $2 or h.key is null and starts_with($2, coalesce(h.prefix, '')))
    order by h.id desc limit $3
$$;

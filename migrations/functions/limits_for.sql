-- Returns the rules of a limiter that match a key, also those that are disabled or have expired. The planner inlines
-- it. It is in parts, so that each uses the index of limits_match.
create or replace function pglimit.limits_for(_limiter text, _key text) returns setof pglimit.limits
language sql stable parallel safe
begin atomic
    select * from pglimit.limits where limiter = _limiter and key = _key
    union all select * from pglimit.limits where limiter = _limiter and key is null
        and prefix = any (array(select left(_key, n) from generate_series(1, length(_key)) n))
    union all select * from pglimit.limits where limiter = _limiter and key is null and prefix is null
    union all select * from pglimit.limits where limiter is null;
end;

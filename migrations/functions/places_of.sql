-- Returns how many places a key has by the rules of the table pglimit.limits with the action places. Null: none is for
-- it. Volatile, because a caller that has waited must see the table as it is now. Locks nothing.
create or replace function pglimit.places_of(_limiter text, _key text) returns bigint
language plpgsql volatile set search_path = '' set row_security = off
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
begin
    return (
        select l.limit_text::bigint from pglimit.limits_for(_limiter, _key) l
        where l.kind = 'places' and l.enabled and (l.expires_at > clock_timestamp()) is not false
        order by l.key, length(l.prefix) desc nulls last, l.temporary desc limit 1);
end
$$;

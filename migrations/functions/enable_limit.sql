-- Enables a rule, or disables it, and returns the row that it was, or null: the temporary one, until it expires, else
-- the permanent one. A rule that is so already is left alone. Parameters are as for delete_limit.
create or replace function pglimit.enable_limit(
    limiter text, enabled boolean, key text default null, prefix text default null, kind text default 'live',
    note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top constant bigint := pglimit.limit_on_top(limiter, key, prefix, kind, note);
    was constant jsonb := (select to_jsonb(l) from pglimit.limits l where l.id = top);
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
begin
    perform set_config('pglimit.by', coalesce(by, _by), true);
    update pglimit.limits l set (enabled, note) = (enable_limit.enabled, enable_limit.note)
    where l.id = top and l.enabled is distinct from enable_limit.enabled;
    perform set_config('pglimit.by', _by, true);
    return was;
end
$$;

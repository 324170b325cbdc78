-- Removes a rule, and returns the row that it was, or null: the temporary one, until it expires, else the permanent
-- one; of the kind off both. kind: live, observe, off or places. note: why. by: as for set_limit.
create or replace function pglimit.delete_limit(
    limiter text, key text default null, prefix text default null, kind text default 'live',
    note text default null, by text default null
) returns jsonb
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    top constant bigint := pglimit.limit_on_top(limiter, key, prefix, kind, note);
    removed jsonb;
    _by constant text := coalesce(current_setting('pglimit.by', true), '');
    _note constant text := coalesce(current_setting('pglimit.note', true), '');
begin
    perform set_config('pglimit.by', coalesce(by, _by), true), set_config('pglimit.note', note, true);
    delete from pglimit.limits l where l.id = top returning to_jsonb(l) into removed;
    if removed ->> 'kind' = 'off' then -- what is switched on is on
        delete from pglimit.limits l where l.limiter is not distinct from delete_limit.limiter and l.kind = 'off';
    end if;
    perform set_config('pglimit.by', _by, true), set_config('pglimit.note', _note, true);
    return removed;
end
$$;

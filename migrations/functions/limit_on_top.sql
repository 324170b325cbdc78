-- Returns the rule that delete_limit and enable_limit are about: the temporary one, until it expires, else the
-- permanent one. Null: none. Waits for other changes of limits, until they commit. Fails with SQLSTATE 22023 without a
-- note, or if kind is none.
create or replace function pglimit.limit_on_top(limiter text, key text, prefix text, kind text, note text)
returns bigint
language plpgsql set search_path = '' set row_security = off as $$
begin
    if coalesce(note, '') !~ '[^[:space:]]' then
        raise exception 'pglimit: note is empty: say why' using errcode = 'invalid_parameter_value';
    elsif (kind in ('live', 'observe', 'off', 'places')) is not true then
        raise exception 'pglimit: kind is %: it must be live, observe, off or places', coalesce(kind, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    update pglimit.limits set note = '' where false; -- its trigger waits
    return (
        select l.id from pglimit.limits l where array[l.limiter, l.key, l.prefix, l.kind] = array[$1, $2, $3, $4]
        order by (l.expires_at > clock_timestamp()) is true desc, l.temporary limit 1);
end
$$;

-- The trigger of statements that change limits, which wait for each other, until the commit; and of the rows that they
-- change, whose history it writes. It acts as the owner, and so for this table only: everybody may call it for a table
-- of their own. (The name is compared as text, because a type named here could be one of the caller's temporary
-- schema.)
create or replace function pglimit.limit_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    of pglimit.limits;
    last bigint;
    next bigint;
begin
    if tg_table_schema <> 'pglimit' or tg_table_name <> 'limits' then
        raise exception 'pglimit: this is a trigger of pglimit.limits only' using errcode = 'insufficient_privilege';
    elsif tg_op = 'TRUNCATE' then
        raise exception 'pglimit: truncate leaves no history' using errcode = 'object_not_in_prerequisite_state',
            hint = 'Use: delete from pglimit.limits';
    elsif tg_level = 'STATEMENT' then
        lock table pglimit.limits_history in share row exclusive mode;
        return null;
    end if;
    of := case when tg_op = 'DELETE' then old else new end;
    last := coalesce((select max(h.id) from pglimit.limits_history h), 0);
    next := nextval('pglimit.limits_history_id_seq');
    if next <= last then -- logical replication brought the rows and not the sequence
        next := setval('pglimit.limits_history_id_seq', last + 1);
    end if;
    insert into pglimit.limits_history (id, at, role, by, note, limiter, key, prefix, before, after)
    overriding system value values (
        next, clock_timestamp(), session_user, coalesce(nullif(current_setting('pglimit.by', true), ''), session_user),
        case when tg_op = 'DELETE' then pglimit.limit_reason() else of.note end, of.limiter, of.key, of.prefix,
        case when tg_op <> 'INSERT' then to_jsonb(old) end, case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end
$$;
create or replace trigger limits_change before insert or update or delete or truncate on pglimit.limits
    for each statement execute function pglimit.limit_changed();
create or replace trigger limit_changed after insert or update or delete on pglimit.limits
    for each row execute function pglimit.limit_changed();

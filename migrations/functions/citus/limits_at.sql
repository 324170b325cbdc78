-- Returns what limits_for does, on any node: the coordinator has the table of limits, and other nodes ask it, in a transaction of
-- its own. Fails with SQLSTATE 58000 if it does not answer.
create or replace function pglimit.limits_at(_limiter text, _key text) returns table (
    id bigint, limiter text, key text, prefix text, kind text, action text, limit_text text, enabled boolean, expires_at timestamptz, temporary boolean
)
language plpgsql set search_path = '' as $$
declare
    coordinator record;
    rules jsonb;
begin
    if to_regclass('pglimit.limits') is not null then
        execute 'select jsonb_agg(l) from pglimit.limits_for($1, $2) l' into rules using _limiter, _key;
    else
        select c.success, c.result into coordinator
        from run_command_on_coordinator(format('select jsonb_agg(l) from pglimit.limits_for(%L, %L) l', _limiter, _key)) c;
        if coordinator.success is not true then
            raise exception 'pglimit: the coordinator of Citus does not answer: %', coordinator.result using errcode = 'system_error';
        end if;
        rules := nullif(coordinator.result, ''); -- a null
    end if;
    return query select r.* from jsonb_to_recordset(rules) r (
        id bigint, limiter text, key text, prefix text, kind text, action text, limit_text text, enabled boolean, expires_at timestamptz, temporary boolean);
end
$$;

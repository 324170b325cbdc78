-- Returns what a query of one value returns on the coordinator of Citus, which has the table of limits: for calls that are
-- decided on another node (see Distribute). It runs in a transaction of its own. Fails with SQLSTATE 22023 as the query
-- does, with 42P01 where there is no Citus, else with 58000.
create or replace function pglimit.on_coordinator(query text) returns text
language plpgsql set search_path = '' as $$
declare
    answer record;
begin
    if to_regprocedure('pg_catalog.run_command_on_coordinator(text)') is null then
        raise exception 'pglimit: there is no table pglimit.limits, and this is no node of Citus' using errcode = 'undefined_table', hint = 'Run: pglimit migrate up';
    end if;
    select c.success, c.result into answer from run_command_on_coordinator(query) c;
    if answer.success is not true then
        raise exception '%', coalesce(regexp_replace(answer.result, '^[^:]*: +', ''), 'pglimit: the coordinator of Citus does not answer')
            using errcode = case when answer.result ~ '^[^:]*: +pglimit: ' then 'invalid_parameter_value' else 'system_error' end;
    end if;
    return nullif(answer.result, ''); -- a null
end
$$;

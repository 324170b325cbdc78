-- Returns whether now_ns is still the time, see late_ns. For the condition of an update, which checks it again after a
-- wait for the row. row_ns: a column of that row. It has no effect: it is there, and the function says that it is immutable,
-- so that Postgres calls it for the row, and Citus, which refuses a volatile function there, leaves that to the row's node.
create or replace function pglimit.is_now(now_ns bigint, row_ns bigint) returns boolean
language plpgsql immutable set search_path = '' as $$
begin
    return pglimit.clock_ns() - now_ns between -pglimit.step_ns() and pglimit.late_ns();
end
$$;

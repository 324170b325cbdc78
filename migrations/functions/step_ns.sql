-- A row written more than 10 ms ahead of the clock was written before the clock stepped
-- back. (Less than that is no step: a statement that began before another may reach the
-- row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe
return 10000000::bigint;

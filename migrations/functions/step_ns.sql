-- A row that is dated more than 10 ms ahead of the clock was written before the clock stepped back. (Less is no
-- step: a statement may read the clock before another one does, and reach the row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe return 10000000::bigint;

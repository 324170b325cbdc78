-- Checks a row that was just inserted with the date at_ns. Returns true, or fails with SQLSTATE
-- 40001 if at_ns is more than 100 ms ago: a row that is dated too early would refill tokens for
-- the time that its insert waited, on top of its grant. Also fails if the clock has stepped back
-- since at_ns: the insert may have missed a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint) returns boolean
language plpgsql volatile set search_path = '' as $$
begin
    if pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and 100000000 then
        raise exception 'pglimit: had to wait for another call' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;

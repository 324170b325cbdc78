-- Checks a row that was just written with the date at_ns. Returns true, or fails with SQLSTATE 40001 if at_ns is more
-- than 100 ms ago: tokens would be refilled for the time that the write waited, on top of its grant. Also fails if
-- the clock has stepped back since at_ns: the write may not know a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint) returns boolean
language plpgsql volatile set search_path = '' as $$
begin
    if pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and 100000000 then
        raise exception 'pglimit: had to wait for another call' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;

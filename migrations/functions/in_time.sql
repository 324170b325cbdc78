-- Fails with SQLSTATE 40001 if at_ns is more than 100 ms ago: of a row that is written by then,
-- what flowed back meanwhile would come on top of what was granted. Or if the clock has stepped
-- back since: then the row may not have met those that were moved.
create or replace function pglimit.in_time(at_ns bigint) returns boolean
language plpgsql volatile
set search_path = ''
as $$
begin
    if pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and 100000000 then
        raise exception 'pglimit: had to wait for another call' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;

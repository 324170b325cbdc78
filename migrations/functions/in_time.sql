-- Checks a write that is dated at_ns. Returns true, or fails with SQLSTATE 40001 if it is not complete, because
-- another call was faster; or if it had to wait, see late_ns; or if the clock has stepped back since: it may not know
-- a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint, complete boolean default true) returns boolean
language plpgsql volatile set search_path = '' as $$
begin
    if not complete or pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and pglimit.late_ns() then
        raise exception 'pglimit: %',
            case when complete then 'had to wait for another call' else 'a bucket has changed meanwhile' end
            using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;

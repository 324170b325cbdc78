-- Returns how many of the tokens that are there several requests get, in their order: each gets
-- as many as it wants and are left, in whole units. The requests are the elements first to last
-- of wants and units.
create or replace function pglimit.in_turn(there bigint, wants bigint[], units bigint[], first bigint, last bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    rest bigint := there;
begin
    for i in first .. last loop
        if (wants[i] >= 0 and units[i] > 0) is not true then
            raise exception 'pglimit.in_turn: request % wants % in units of %', i, wants[i], units[i] using errcode = 'invalid_parameter_value';
        end if;
        rest := rest - least(wants[i], rest) / units[i] * units[i];
    end loop;
    return there - rest;
end
$$;

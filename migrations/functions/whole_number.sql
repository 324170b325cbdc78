-- Returns the number that digits spell, with or without a sign. Null if they spell no whole number,
-- or one that does not fit a bigint.
create or replace function pglimit.whole_number(digits text) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    number numeric;
begin
    if digits collate "C" ~ '^[+-]?[0-9]+$' then
        number := digits;
    end if;
    return case when number between -9223372036854775808 and 9223372036854775807 then number end;
end
$$;

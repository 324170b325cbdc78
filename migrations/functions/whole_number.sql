-- Returns the number that digits spell, with or without a sign. Null if they spell no whole number,
-- or one that does not fit a bigint.
create or replace function pglimit.whole_number(digits text) returns bigint
language sql immutable parallel safe
return case
    when digits collate "C" !~ '^[+-]?[0-9]+$' then null
    when digits::numeric between -9223372036854775808 and 9223372036854775807 then digits::bigint
end;

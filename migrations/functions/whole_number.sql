-- Returns how much the digits are in these units. Null if they are no digits, or it does not fit a bigint.
create or replace function pglimit.whole_number(digits text, unit bigint default 1) returns bigint
language sql immutable parallel safe
return case
    when digits collate "C" !~ '^0*[0-9]{1,19}$' then null
    when digits::numeric * unit <= 9223372036854775807 then digits::bigint * unit
end;

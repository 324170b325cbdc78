-- Returns how many tokens several requests get of a bucket, in their order: each gets as many as it
-- wants and are left, in whole units. The requests are the elements first to last of wants and units.
--
-- room_ns: the window without what leases set aside. free_ns: how much of that can be taken; negative,
-- if more is owed.
-- aheads_ns: each request also gets what comes back within that time, if a unit fits into the room.
-- (A unit that does not would be used before the tokens that are leased have come back.) Null: none
-- of them does.
create or replace function pglimit.in_turn(
    free_ns bigint, room_ns bigint, token_ns bigint, wants bigint[], units bigint[], aheads_ns bigint[], first bigint, last bigint
) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    granted bigint := 0;
begin
    for i in first .. last loop
        if (wants[i] >= 0 and units[i] > 0 and (aheads_ns is null or aheads_ns[i] between 0 and 6400000000000000000 - room_ns)) is not true then
            raise exception 'pglimit.in_turn: request % wants % in units of %, % ns ahead', i, wants[i], units[i], aheads_ns[i] using errcode = 'invalid_parameter_value';
        end if;
        granted := granted + least(wants[i], case
            when units[i] <= room_ns / token_ns then greatest(0, free_ns - granted * token_ns + coalesce(aheads_ns[i], 0)) / token_ns
            else 0
        end) / units[i] * units[i];
    end loop;
    return granted;
end
$$;

-- Plans which of several groups of requests are granted, in their order: a group gets all that it
-- asks for, or nothing. there: how many tokens each bucket has. lasts, members, asks: as for
-- token_bucket_take_groups.
--
-- granted: for each group, whether it is. takes: from each bucket, how many tokens they take.
create or replace function pglimit.all_or_nothing(
    there bigint[], lasts bigint[], members bigint[], asks bigint[], out granted boolean[], out takes bigint[]
)
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    first bigint := 1;
    last bigint;
    next bigint; -- request of the group
begin
    takes := array_fill(0::bigint, array[cardinality(there)]);
    foreach last in array lasts loop
        next := first;
        while next <= last and asks[next] <= there[members[next]] - takes[members[next]] loop -- the sum of both could overflow
            takes[members[next]] := takes[members[next]] + asks[next];
            next := next + 1;
        end loop;
        granted := granted || (next > last);
        for i in first .. case when next > last then 0 else next - 1 end loop
            takes[members[i]] := takes[members[i]] - asks[i];
        end loop;
        first := last + 1;
    end loop;
end
$$;

-- Returns for each calendar when its window ends in which at_ns lies: see window_end_ns. Null for null.
create or replace function pglimit.window_ends_ns(calendars text[], at_ns bigint) returns bigint[]
language plpgsql stable strict set search_path = '' as $$
begin
    if calendars[1] = all (calendars) then -- as a rule
        return array_fill(pglimit.window_end_ns(calendars[1], at_ns), array[cardinality(calendars)]);
    end if;
    return array(
        select w.ends_ns
        from unnest(calendars) with ordinality u(calendar, number)
        left join (select c.calendar, pglimit.window_end_ns(c.calendar, at_ns) as ends_ns from (select distinct unnest(calendars) as calendar) c) w
        on w.calendar = u.calendar
        order by u.number);
end
$$;

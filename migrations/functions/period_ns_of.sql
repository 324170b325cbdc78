-- Returns the nanoseconds of a period, [n]unit: "90s", "36h", "day". Null if the text is none, or one that does not fit
-- a bigint. A month and a year are windows of the calendar. The units are those of rate.ParseLimit.
create or replace function pglimit.period_ns_of(period text) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    unit constant text := ltrim(period, '0123456789');
begin
    return pglimit.whole_number(coalesce(nullif(left(period, -length(unit)), ''), '1'), case
        when unit = 'ns' then 1
        when unit in ('ms', 'millisecond', 'milliseconds') then 1000000
        when unit in ('s', 'sec', 'second', 'seconds') then 1000000000
        when unit in ('m', 'min', 'minute', 'minutes') then 60000000000
        when unit in ('h', 'hour', 'hours') then 3600000000000
        when unit in ('day', 'days') then 86400000000000
        when unit in ('week', 'weeks') then 604800000000000
    end);
end
$$;

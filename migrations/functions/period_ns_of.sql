-- Returns the nanoseconds of the period of a limit: a Go duration ("1m30s", "1.5h"), or a whole number
-- of days or weeks ("2w"). A number 1 before the unit may be left out. Null if the text is no period, or one that does
-- not fit a bigint. A period may be zero or negative: pglimit.request_ns refuses that.
create or replace function pglimit.period_ns_of(period text) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    word constant text collate "C" := case when left(period, 1) collate "C" between 'a' and 'z' then '1' else '' end || period;
    ns numeric := 0;
    part text[];
    fraction text;
    unit_ns numeric;
begin
    if right(word, 1) in ('d', 'w') then
        ns := pglimit.whole_number(left(word, -1)) * case right(word, 1) when 'd' then 86400000000000 else 604800000000000 end::numeric;
    elsif word ~ '^[+-]?(([0-9]+[.]?[0-9]*|[.][0-9]+)[^0-9.+-]+)+$' then
        for part in select regexp_matches(ltrim(word, '+-'), '([0-9]*)[.]?([0-9]*)([^0-9.]+)', 'g') loop
            unit_ns := case part[3] when 'h' then 3600000000000 when 'm' then 60000000000 when 's' then 1000000000 when 'ms' then 1000000 when 'us' then 1000 when 'ns' then 1
                -- With a micro sign or a small Greek mu before the s. Any other unit is none, and makes the sum null.
                else case when encode(convert_to(part[3], 'UTF8'), 'hex') in ('c2b573', 'cebc73') then 1000 end
            end;
            ns := ns + coalesce(nullif(part[1], '')::numeric, 0) * unit_ns;
            -- Go reckons a fraction in floating point, with as many digits as fit an integer.
            fraction := left('0' || part[2], 300);
            while fraction::numeric > 9223372036854775808 loop
                fraction := left(fraction, -1);
            end loop;
            ns := ns + trunc(fraction::double precision * (unit_ns::double precision / ('1e' || length(fraction) - 1)::double precision))::numeric;
        end loop;
        ns := case when left(word, 1) = '-' then -ns else ns end;
    elsif word !~ '^[+-]?0$' then
        return null;
    end if;
    return case when ns between -9223372036854775808 and 9223372036854775807 then ns end;
end
$$;

-- Returns the end of the calendar window in which at_ns lies, in nanoseconds since 1970. It is computed here only:
-- other programs may know other rules of time zones.
--
-- calendar: second, minute, hour, day, week, month or year; perhaps " from " and its first day (of a week: monday to sunday; of a
-- month: 1 to 31, which is its last day if it has less); and a time zone: 'day UTC', 'month from 15 Europe/Berlin'.
--
-- A window of a day or more ends as soon as the zone's date is that of the next one, even if that date has no midnight,
-- or two. Hours are those of the zone, in the repeated hour of autumn too. No step here uses the session's time zone.
-- Windows and the rules of zones begin with a second.
create or replace function pglimit.window_end_ns(calendar text, at_ns bigint) returns bigint
language plpgsql stable strict parallel safe set search_path = '' as $$
declare
    words constant text[] := string_to_array(calendar, ' ');
    first constant text := case when words[2] = 'from' then words[3] end;
    zone constant text := words[cardinality(words)];
    "time" constant timestamptz := to_timestamp(at_ns / 1000000000);
    today timestamp; -- and the others: midnights of the zone's dates
    month timestamp;
    next timestamp;
    days int;
    ends timestamptz;
begin
    if words[1] in ('second', 'minute', 'hour') then
        ends := date_trunc(words[1], "time", zone) + case words[1] when 'second' then interval '1 second' when 'minute' then interval '1 minute' else interval '1 hour' end;
        return date_part('epoch', ends)::bigint * 1000000000;
    end if;
    today := date_trunc('day', "time" at time zone zone);
    if words[1] = 'day' then
        next := today + interval '1 day';
    elsif words[1] = 'month' then
        month := date_trunc('month', today);
        days := coalesce(first, '1')::int - 1;
        next := least(month + interval '1 day' * days, month + interval '1 month - 1 day');
        if today >= next then
            month := month + interval '1 month';
            next := least(month + interval '1 day' * days, month + interval '1 month - 1 day');
        end if;
    elsif words[1] = 'week' then
        days := coalesce(array_position('{monday,tuesday,wednesday,thursday,friday,saturday,sunday}', first), 1);
        next := today + interval '1 day' * (7 - (7 + date_part('isodow', today)::int - days) % 7);
    elsif words[1] = 'year' then
        next := date_trunc('year', today) + interval '1 year';
    end if;
    if next is null then
        raise exception 'pglimit: calendar %: there is no such window', to_json(calendar) using errcode = 'invalid_parameter_value';
    end if;
    ends := next at time zone zone; -- of a midnight that comes twice, the second
    if (ends - interval '30 minutes') at time zone zone >= next then
        ends := ends - case when (ends - interval '1 hour') at time zone zone >= next then interval '1 hour' else interval '30 minutes' end;
    end if;
    return date_part('epoch', ends)::bigint * 1000000000;
end
$$;

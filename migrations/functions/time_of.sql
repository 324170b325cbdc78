-- The time that is so many nanoseconds after 1970, which is to say so many microseconds: no
-- timestamptz is finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe
return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

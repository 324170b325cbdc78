-- The time that is ns nanoseconds after the beginning of 1970, rounded down to a microsecond:
-- timestamptz is no finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

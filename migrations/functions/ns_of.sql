-- The time in nanoseconds since 1970.
create or replace function pglimit.ns_of("time" timestamptz) returns bigint
language sql immutable parallel safe return (extract(epoch from "time") * 1000000)::bigint * 1000;

-- The database's clock: nanoseconds since 1970, in steps of a microsecond. Every decision
-- is dated by it. It may step back; no function here assumes the contrary.
create or replace function pglimit.clock_ns() returns bigint
language sql volatile parallel safe return (date_part('epoch', clock_timestamp()) * 1000000)::bigint * 1000;
